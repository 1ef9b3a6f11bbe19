#include "actors/api/future.h"

#include <asio/post.hpp>
#include <asio/this_coro.hpp>

#include <fmt/format.h>

namespace shoal::actors::api {

Error Reply::located(Error error) const {
  const std::string actor = fmt::format("actor {}({})", callee_.class_name, to_string(callee_.actor));
  // The news of an actor's death says whose it is.
  const bool named = !error.context().empty() && error.context().back() == actor;
  Error out = std::move(error).in(fmt::format("method {}", method_));
  if (!named) out = std::move(out).in(actor);
  if (callee_.rank >= 0) out = std::move(out).in(fmt::format("rank {}", callee_.rank));
  return out;
}

Result<void> Reply::wait(Duration timeout) const {
  if (ready()) return {};
  Session& session = hub_->session;
  const auto waited = session.wait([this] { return future_.ready(); }, session.deadline_in(timeout));
  if (!waited) return fail(located(waited.error()));
  return {};
}

Task<void> Reply::until_ready(Reply reply) {
  if (reply.ready()) co_return Result<void>();
  // A coroutine that is cancelled is gone before its future is ready: then nobody may be woken.
  struct Waiting {
    Session& session;
    std::shared_ptr<bool> here = std::make_shared<bool>(true);
    ~Waiting() {
      session.own([this] { *here = false; });
    }
  };
  Hub& hub = *reply.hub_;
  const Waiting waiting{hub.session};
  const auto executor = co_await asio::this_coro::executor;
  std::function<void(std::function<void(Result<void>)>)> start = [&hub, executor, here = waiting.here,
                                                                  future = reply.future_](std::function<void(Result<void>)> done) {
    hub.session.own([&] {
      future.then([&hub, executor, here, done](const Result<Value>&) {
        if (!*here) return;
        asio::post(executor, [done] { done(Result<void>()); });
        ++hub.wakeups;
      });
    });
  };
  co_return co_await runtime::suspend<void>(std::move(start));
}

Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout) {
  if (replies.empty()) return 0;
  struct Tally {
    std::size_t ready = 0, failed;
  };
  const auto tally = std::make_shared<Tally>(Tally{0, replies.size()});
  Session& session = replies[0]->hub_->session;
  session.own([&] {
    for (std::size_t i = 0; i < replies.size(); ++i) {
      replies[i]->future_.then([tally, i, all = replies.size()](const Result<Value>& value) {
        ++tally->ready;
        if ((!value || value->raised()) && tally->failed == all) tally->failed = i;
      });
    }
  });
  const auto over = [&] { return tally->ready == replies.size() || tally->failed < replies.size(); };
  const auto waited = session.wait(over, session.deadline_in(timeout));
  if (waited) return tally->failed;
  for (const auto* r : replies) {
    if (!r->ready()) return fail(r->located(waited.error()));
  }
  return fail(waited.error());
}

}  // namespace shoal::actors::api
