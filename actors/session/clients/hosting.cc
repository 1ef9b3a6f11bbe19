#include "actors/session/clients/hosting.h"

#include <unistd.h>

namespace shoal::actors {

using runtime::Message;

Hosting::Hosting(SessionLoop& loop, runtime::Network& network, HeadClient& head, NodeClient& node, CallClient& calls, const Identity& self)
    : loop_(loop),
      head_(head),
      node_(node),
      self_(self),
      actors_(std::make_unique<ActorHost>(*loop.clock(), network)),
      requests_(*loop.clock()) {
  actors_->on_cancel_children([&calls](CallKey parent, CancelHow how) { calls.cancel_children(parent, how); });
  head.link().on_opened([this] {
    requests_.send_again(*head_.link().peer());
    if (blocked_) (void)head_.link().notify(Method::kWorkerBlocked, body(to_bytes(WorkerBlocked{self_.worker, true})));
  });
  node.link().on_notice(Method::kKillInProcess, [this](const Message& message) {
    if (const auto m = from_bytes<KillHosted>(message.body); m && actors_) {
      actors_->kill(m->actor, m->cause.value_or(unavailable("it was killed")));
    }
  });
}

std::string Hosting::endpoint() {
  return loop_.own([this] { return actors_->endpoint(); });
}

Result<void> Hosting::ready() {
  WorkerUpdate update;
  update.worker = self_.worker;
  update.state = WorkerState::kRunning;
  update.pid = getpid();
  update.endpoint = endpoint();
  SHOAL_OK(node_.request(Method::kWorkerReady, to_bytes(update)));
  return {};
}

Result<void> Hosting::leave() {
  SHOAL_OK(head_.request(Method::kWorkerLeaves, to_bytes(GetCreationSpec{self_.worker})));
  return {};
}

void Hosting::set_blocked(bool blocked) {
  (void)head_.reach_once();  // a head that is away gives the CPUs to no others anyway
  loop_.own([&] {
    blocked_ = blocked;
    (void)head_.link().notify(Method::kWorkerBlocked, body(to_bytes(WorkerBlocked{self_.worker, blocked})));
  });
}

Result<FoundActor> Hosting::creation_spec() {
  return head_.request_for<FoundActor>(Method::kGetCreationSpec, to_bytes(GetCreationSpec{self_.worker}));
}

Result<runtime::Future<HostedActor>> Hosting::place(HostActor actor, std::shared_ptr<Hosted> hosted, runtime::Duration timeout) {
  actor.worker = self_.worker;
  actor.job = self_.job;
  actor.pid = getpid();
  actor.endpoint = endpoint();
  SHOAL_OK(head_.reach());
  return loop_.own([&]() -> Result<runtime::Future<HostedActor>> {
    auto* const head = head_.link().peer();
    if (!head) return fail(head_gone());
    actors_->add(actor.actor, actor.class_name, std::move(hosted));
    return requests_.add(*head, actor, timeout, [this, id = actor.actor] { actors_->remove(id); });
  });
}

void Hosting::set_attributes(const SetAttributes& attributes) {
  loop_.own([&] { (void)head_.link().notify(Method::kSetAttributes, body(to_bytes(attributes))); });
}

void Hosting::close() {
  requests_.close(cancelled("this process left the cluster"));
  actors_.reset();
}

}  // namespace shoal::actors
