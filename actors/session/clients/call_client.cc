#include "actors/session/clients/call_client.h"

namespace shoal::actors {

CallClient::CallClient(SessionLoop& loop, runtime::Network& network, HeadClient& head, CallBook& book, const Identity& self,
                       runtime::Duration retry_delay)
    : loop_(loop),
      by_actor_(std::make_unique<ActorCalls>(*loop.clock(), network, ActorCalls::Options{.retry_delay = retry_delay})),
      pools_(loop, head, *by_actor_, book, self, retry_delay) {
  by_actor_->note_in(book);
}

ValueFuture CallClient::call(Call call, std::vector<ValueFuture> deps, std::uint64_t* task) {
  return loop_.own([&] {
    if (task != nullptr) *task = call.task = by_actor_->new_task();
    return by_actor_->call(std::move(call), std::move(deps));
  });
}

std::vector<ValueFuture> CallClient::split(const ValueFuture& whole, std::size_t count) {
  std::vector<runtime::Promise<Value>> promises(count);
  loop_.own([&] {
    whole.then([promises](const Result<Value>& value) {
      auto parts = value && !value->raised() ? value->split(promises.size()) : Result<std::vector<Value>>();
      for (std::size_t i = 0; i < promises.size(); ++i) {
        if (!value || value->raised()) {
          promises[i].set(value);
        } else if (!parts) {
          promises[i].set(fail(parts.error()));
        } else {
          promises[i].set(std::move((*parts)[i]));
        }
      }
    });
  });
  std::vector<ValueFuture> out;
  for (const auto& p : promises) out.push_back(p.future());
  return out;
}

void CallClient::in_any_order(ActorId actor, bool any) {
  loop_.own([&] { by_actor_->in_any_order(actor, any); });
}

void CallClient::keep_until_answered(ActorId actor, std::shared_ptr<const void> what) {
  loop_.own([&] { by_actor_->keep_until_answered(actor, std::move(what)); });
}

Result<void> CallClient::cancel(const ToCancel& what, CancelHow how) {
  return loop_.own([&] { return cancel_now(what, how); });
}

Result<void> CallClient::cancel_now(const ToCancel& what, CancelHow how) {
  const ValueFuture result = what.answer();
  pools_.cancel(result, how);
  if (!result.ready() && how.force && by_actor_->actors().pending(result)) {
    return fail(invalid_argument("force=True is not supported for actor tasks: cancelling a call does not end an actor's process")
                    .with_hint("cancel the call without force, or kill() the actor"));
  }
  // Called before the cancellation, which may run callbacks.
  what.on_cancel();
  if (!result.ready()) by_actor_->cancel(result, how);
  return {};
}

void CallClient::cancel_children(CallKey parent, CancelHow how) {
  pools_.cancel_children(parent, how);
  if (by_actor_) by_actor_->cancel_children(parent);
}

bool CallClient::any_open() const { return *num_open_ > 0 || (by_actor_ && by_actor_->actors().any_open()) || pools_.any_open(); }

void CallClient::note_open(const ValueFuture& whole) {
  ++*num_open_;
  whole.then([open = num_open_](const Result<Value>&) { --*open; });
}

std::uint64_t CallClient::report(std::vector<TaskReport>& out, std::size_t limit) const {
  const std::uint64_t left_out = by_actor_ ? by_actor_->actors().report(out, limit) : 0;
  return left_out + pools_.report(out, limit);
}

CallBook::Counts CallClient::counts() const {
  CallBook::Counts out;
  if (by_actor_) by_actor_->actors().count(out);
  pools_.count(out);
  return out;
}

void CallClient::close() {
  pools_.close();
  by_actor_.reset();
}

}  // namespace shoal::actors
