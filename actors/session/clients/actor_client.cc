#include "actors/session/clients/actor_client.h"

#include <array>
#include <memory>

namespace shoal::actors {

using runtime::Message;
using runtime::Peer;

namespace {

constexpr runtime::Duration kRetryEndAfter = std::chrono::seconds(1);  // pause before kRelease is sent again
constexpr std::array<std::byte, 1> kNoArguments{std::byte{0x80}};      // an empty array in CBOR

Result<ActorRow> row_in(const Result<Message>& reply) {
  if (!reply) return fail(reply.error());
  return from_bytes<ActorRow>(reply->body);
}

}  // namespace

ActorClient::ActorClient(SessionLoop& loop, HeadClient& head, NodeClient& node, CallClient& calls, ObjectClient& objects,
                         runtime::Random& random, const Identity& self, runtime::Duration control_timeout)
    : loop_(loop),
      head_(head),
      node_(node),
      calls_(calls),
      self_(self),
      control_timeout_(control_timeout),
      handles_(objects.references(),
               {.post = [this](std::function<void()> fn) { loop_.post(std::move(fn)); },
                .new_object = [this, &random] { return ObjectKey{self_.job, random.id<ObjectId>(), self_.node}; },
                .release = [this](ActorId actor) { return release(actor); },
                // Names no owner, since the fetch of a lifetime token must not fail when the process that made it is gone.
                .get = [&objects](const ObjectKey& object) { return objects.fetch_now(object, {}); },
                .keep_until_answered =
                    [this](ActorId actor, std::shared_ptr<const void> what) {
                      if (auto* const actors = calls_.by_actor()) actors->keep_until_answered(actor, std::move(what));
                    },
                .later = [this](std::function<void()> fn) { return loop_.clock()->after(kRetryEndAfter, std::move(fn)); }}) {
  head.link().on_opened([this] { watch_again(); });
  head.link().on_closed([this] { lose_watch(); });
  node.link().on_closed([this] { lose_watch(); });
  head.on_notice<ActorRow>(Method::kActorUpdate, [this](const ActorRow& row) {
    if (auto* const actors = calls_.by_actor()) actors->updated(row);
  });
  node.link().on_notice(Method::kWorkerExited, [this](const Message& message) {
    if (const auto process = from_bytes<WorkerUpdate>(message.body)) process_gone(*process);
  });
}

Result<std::optional<FoundActor>> ActorClient::create_gang(const GangSpec& spec) {
  // request() runs this just before it sends. Until the answer, creating_ keeps watch_again() from watching actors that the head may not
  // have yet, since NotFound would end them.
  const auto expect = [&] {
    for (const auto& a : spec.actors) {
      creating_.insert(a.id);
      calls_.by_actor()->expect(a.id, a.class_name);
    }
  };
  GangSpec request = spec;
  if (self_.started_by_node) request.creator = self_.worker;
  const auto created = head_.request(Method::kCreateGang, to_bytes(request), expect);
  loop_.own([&] {
    for (const auto& a : spec.actors) creating_.erase(a.id);
  });
  if (created && created->body.size() == 0) return std::optional<FoundActor>();
  const auto forget = [&](const Error& why) {
    loop_.own([&] {
      for (const auto& a : spec.actors) calls_.by_actor()->forget(a.id, why);
    });
  };
  if (!created && created.error().reason() == "Unschedulable") {
    loop_.own([&] {
      for (const auto& a : spec.actors)
        calls_.by_actor()->unknown(a.id, Error(created.error()).in("actor " + a.class_name + "(" + to_string(a.id) + ")"));
    });
    return std::optional<FoundActor>();
  }
  if (!created) {
    forget(created.error());
    return fail(created.error());
  }
  forget(not_found("another actor has this actor's name"));
  SHOAL_TRY(auto exists, from_bytes<FoundActor>(created->body));
  // A report on the actor may have come before this process expected it, so know() asks for the row.
  SHOAL_OK(know(exists.row.id, exists.row.class_name));
  return std::optional(std::move(exists));
}

Result<FoundActor> ActorClient::find(const FindActor& request) {
  Result<FoundActor> out = fail(head_gone());
  SHOAL_OK(head_.retry([&]() -> Result<void> {
    SHOAL_OK(head_.reach_once());
    auto answer = std::make_shared<std::optional<Result<FoundActor>>>();
    loop_.own([&] {
      head_.call(Method::kFindActor, to_bytes(request), [this, answer](const Result<Message>& reply) { answer->emplace(found(reply)); });
    });
    SHOAL_OK(loop_.wait([&] { return answer->has_value(); }));
    out = std::move(**answer);
    return out || out.error().reason() != "Disconnected" ? Result<void>() : fail(head_gone());
  }));
  return out;
}

// Adds the actor before any later report on it is handled. Loop only.
Result<FoundActor> ActorClient::found(const Result<Message>& reply) {
  if (!reply) return fail(reply.error());
  SHOAL_TRY(auto out, from_bytes<FoundActor>(reply->body));
  if (auto* const actors = calls_.by_actor()) {
    if (!actors->actors().knows(out.row.id)) actors->expect(out.row.id, out.row.class_name);
    actors->updated(out.row);
  }
  return out;
}

Result<void> ActorClient::know(ActorId actor, const std::string& class_name) {
  if (loop_.own([&] { return calls_.by_actor()->actors().knows(actor); })) return {};
  SHOAL_OK(head_.reach());
  auto answer = std::make_shared<std::optional<Result<void>>>();
  loop_.own([&] {
    if (calls_.by_actor()->actors().knows(actor)) return answer->emplace(), void();
    if (!head_.link().connected()) return answer->emplace(fail(head_gone())), void();
    calls_.by_actor()->expect(actor, class_name);
    watch(actor, control_timeout_, [answer](Result<void> r) { answer->emplace(std::move(r)); });
  });
  auto known = loop_.wait([&] { return answer->has_value(); });
  if (known) known = **answer;
  if (!known && known.error().reason() == "Disconnected") known = fail(head_gone());
  if (!known) loop_.own([&] { calls_.by_actor()->forget(actor, known.error()); });
  return known;
}

Result<void> ActorClient::kill(ActorId actor, bool restart) {
  SHOAL_OK(head_.request(Method::kKillActor, to_bytes(KillActor{actor, restart})));
  return {};
}

Result<bool> ActorClient::withdraw(ActorId actor) {
  if (!loop_.own([&] { return calls_.by_actor()->actors().waits_for_nobody(actor); })) return false;
  SHOAL_TRY(const auto row, head_.request_for<ActorRow>(Method::kWatchActor, to_bytes(ActorRef{actor})));
  if (row.state != ActorState::kPending && !loop_.own([&] { return calls_.by_actor()->actors().waits_for_arguments(actor); })) return false;
  SHOAL_OK(kill(actor));
  return true;
}

Result<void> ActorClient::retire(ActorId worker) {
  SHOAL_OK(head_.request(Method::kKillActor, to_bytes(KillActor{.actor = worker, .hand_on = true})));
  return {};
}

bool ActorClient::dead(ActorId actor) {
  return loop_.own([&] { return calls_.by_actor()->actors().cause(actor) != nullptr || calls_.by_actor()->actors().forgotten(actor); });
}

// ---- loop only ----

// Asks the head for reports on an actor, for as long as this connection lasts.
void ActorClient::watch(ActorId actor, runtime::Duration timeout, std::function<void(Result<void>)> on_answer) {
  head_.link().call(Method::kWatchActor, body(to_bytes(ActorRef{actor})), timeout,
                    [this, actor, on_answer = std::move(on_answer)](const Result<Message>& reply) {
                      const auto row = row_in(reply);
                      auto* const actors = calls_.by_actor();
                      if (row && actors) actors->updated(*row);
                      if (!row && actors && row.error().code() == Code::kNotFound) actors->unknown(actor, row.error());
                      if (on_answer) on_answer(row ? Result<void>() : fail(row.error()));
                    });
}

void ActorClient::watch_again() {
  auto* const actors = calls_.by_actor();
  if (actors == nullptr) return;
  actors->watch_again();
  for (const ActorId actor : actors->actors().expected()) {
    if (!creating_.contains(actor)) watch(actor, Peer::kNoTimeout, {});
  }
}

void ActorClient::lose_watch() {
  auto* const actors = calls_.by_actor();
  if (actors == nullptr || head_.cluster_ends() || head_.link().connected()) return;
  actors->head_gone();
  if (!node_.link().connected()) actors->lose_watch(unavailable("its node is gone"));
}

void ActorClient::process_gone(const WorkerUpdate& process) {
  auto* const actors = calls_.by_actor();
  if (actors && !head_.cluster_ends()) actors->process_gone(process.worker, process.cause.value_or(unavailable("its process ended")));
}

// Called when no handle refers to this actor any more, which this process made. Returns the answer of the call that ends it.
ValueFuture ActorClient::release(ActorId actor) {
  auto nothing = Value::make({kNoArguments});
  auto* const actors = calls_.by_actor();
  if (!actors || !nothing) {
    const runtime::Promise<Value> promise;
    promise.set(fail(cancelled("this process left the cluster")));
    return promise.future();
  }
  Call call;
  call.actor = actor;
  call.method = kRelease;
  call.args = *std::move(nothing);
  if (actors->actors().waits_for_nobody(actor)) withdraw_soon(actor);
  return actors->call(std::move(call), {});
}

// As withdraw(), without waiting. If this kills the actor, the call that release() has made fails.
void ActorClient::withdraw_soon(ActorId actor) {
  head_.call(Method::kWatchActor, to_bytes(ActorRef{actor}), [this, actor](const Result<Message>& reply) {
    const auto row = row_in(reply);
    if (!row || !head_.link().connected() || !calls_.by_actor()->actors().waits_for_nobody(actor)) return;
    if (row->state != ActorState::kPending && !calls_.by_actor()->actors().waits_for_arguments(actor)) return;
    head_.call(Method::kKillActor, to_bytes(KillActor{actor, false}), [](const Result<Message>&) {});
  });
}

}  // namespace shoal::actors
