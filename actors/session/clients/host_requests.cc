#include "actors/session/clients/host_requests.h"

#include "actors/protocol/wire/method.h"

namespace shoal::actors {

runtime::Future<HostedActor> HostRequests::add(runtime::Peer& head, const HostActor& actor, runtime::Duration timeout,
                                               std::function<void()> refused) {
  Request& r = requests_[actor.actor];
  r.body = to_bytes(actor);
  r.refused = std::move(refused);
  r.deadline = clock_.after(timeout, [this, id = actor.actor] {
    finish(id, fail(deadline_exceeded("the rest of the gang of actor " + to_string(id) + " did not join in time")));
  });
  auto out = r.promise.future();
  send(head, actor.actor);
  return out;
}

void HostRequests::send_again(runtime::Peer& head) {
  for (const auto& [id, request] : requests_) send(head, id);
}

// An answer that arrives after close() is ignored. When the connection breaks, the request stays open until send_again().
void HostRequests::send(runtime::Peer& head, ActorId actor) {
  head.call(number(Method::kHostActor), {requests_.at(actor).body.clone(), {}, {}}, runtime::Peer::kNoTimeout,
            [this, actor](Result<runtime::Message> reply) {
              if (!reply && reply.error().reason() == "Disconnected") return;
              finish(actor, reply ? from_bytes<HostedActor>(reply->body) : Result<HostedActor>(fail(reply.error())));
            });
}

void HostRequests::finish(ActorId actor, Result<HostedActor> answer) {
  auto request = requests_.extract(actor);
  if (request.empty()) return;
  if (!answer) request.mapped().refused();
  request.mapped().promise.set(std::move(answer));
}

void HostRequests::close(const Error& why) {
  while (!requests_.empty()) finish(requests_.begin()->first, fail(why));
}

}  // namespace shoal::actors
