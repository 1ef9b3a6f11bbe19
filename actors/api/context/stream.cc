#include "actors/api/context/stream.h"

#include "actors/session/session.h"

namespace shoal::actors::api {

Streams::Id new_stream(Hub& hub) {
  return hub.session.loop().own([&] { return hub.session.calls().streams().open(); });
}

Result<void> Publisher::give(const Value& item) {
  using Yielded = ActorHost::Yielded;
  Result<Yielded> given;
  const auto gives = [&] {
    given = hub_.session.hosting().actors().yields(incoming_, stream_, count_, item);
    return !given || *given != Yielded::kNoRoom || hub_.cancelled.has(incoming_.key());
  };
  while (!hub_.session.loop().wait(gives)) {  // wait() fails for an interruption by a signal, which a worker ignores
  }
  if (!given) return fail(given.error());
  if (*given == Yielded::kDisconnected) return fail(caller_gone(incoming_.call.method));
  count_ += *given == Yielded::kSent;
  return {};
}

Items::Items(Hub& hub, Reply answer, Streams::Id stream) : hub_(hub), answer_(std::move(answer)), stream_(stream) {
  hub_.session.loop().own([this] { hub_.session.calls().streams().follow(stream_, answer_.future()); });
}

Items::~Items() {
  if (over_) return;
  hub_.session.loop().own([this] { hub_.session.calls().streams().close(stream_); });
}

const Reply& Items::ahead() {
  if (!ahead_.valid()) ahead_ = answer_.with(hub_.session.loop().own([this] { return hub_.session.calls().streams().next(stream_); }));
  return ahead_;
}

Items::Next Items::take() {
  Reply item = std::exchange(ahead_, {});
  const auto& value = item.future().peek();
  over_ = !value && value.error().reason() == "StreamOver";
  hub_.session.loop().own([this] { over_ ? hub_.session.calls().streams().close(stream_) : hub_.session.calls().streams().take(stream_); });
  if (!over_) return item;
  if (answer_.result<std::uint64_t>()) return std::nullopt;
  return answer_;
}

Result<Items::Next> Items::next(Duration timeout) {
  if (over_) return Next();
  SHOAL_OK(ahead().wait(timeout));
  return take();
}

Task<Items::Next> Items::next_async(std::shared_ptr<Items> self) {
  if (self->over_) co_return Next();
  const auto ready = co_await Reply::until_ready(self->ahead());
  if (!ready) co_return fail(ready.error());
  co_return self->take();
}

}  // namespace shoal::actors::api
