#include "actors/api/future.h"

#include <algorithm>

#include <asio/post.hpp>
#include <asio/this_coro.hpp>

#include <fmt/format.h>

namespace shoal::actors::api {

namespace {

constexpr std::chrono::milliseconds kShortWait{20};  // of which nobody is told

}  // namespace

Result<void> Hub::wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline) {
  if (function_in != std::this_thread::get_id()) return session.wait(done, deadline);
  const auto soon = std::min(deadline, session.deadline_in(kShortWait));
  auto waited = session.wait(done, soon);
  if (waited || soon == deadline || waited.error().code() != Code::kDeadlineExceeded) return waited;
  session.set_blocked(true);
  waited = session.wait(done, deadline);
  session.set_blocked(false);
  return waited;
}

Reply ready_reply(Hub& hub, const Callee& callee, std::string_view method, Result<Value> value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return Reply(hub, callee, method, promise.future());
}

Result<const Value*> Reply::good() const {
  const auto& value = future_.peek();
  if (!value) return fail(located(value.error()));
  if (value->raised()) return fail(located(raised_error(*value)));
  return &*value;
}

Result<BytesView> Reply::view() const {
  SHOAL_TRY(const Value* const value, good());
  const auto pieces = value->pieces();
  if (pieces.size() != 2) return fail(located(invalid_argument("the result is no Bytes")));
  return BytesView(*value, pieces[1]);
}

Error Reply::located(Error error) const {
  if (!callee_.actor) return std::move(error).in(fmt::format("function {}", method_));
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
  const auto waited = hub_->wait([this] { return future_.ready(); }, hub_->session.deadline_in(timeout));
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
  const auto waited = replies[0]->hub_->wait(over, session.deadline_in(timeout));
  if (waited) return tally->failed;
  for (const auto* r : replies) {
    if (!r->ready()) return fail(r->located(waited.error()));
  }
  return fail(waited.error());
}

Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout) {
  Waited out;
  if (replies.empty()) return out;
  if (count < 1 || count > replies.size()) {
    return fail(invalid_argument(fmt::format("wait() for 1 to {} of {} futures, not for {}", replies.size(), replies.size(), count)));
  }
  std::vector<const void*> seen;
  for (const auto* r : replies) seen.push_back(r->future().identity());
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) return fail(invalid_argument("wait() takes each future once"));
  const auto enough = [&] {
    std::size_t ready = 0;
    for (const auto* r : replies) ready += r->ready();
    return ready >= count;
  };
  Hub& hub = *replies[0]->hub_;
  const auto waited = hub.wait(enough, hub.session.deadline_in(timeout));
  if (!waited && waited.error().code() != Code::kDeadlineExceeded) return fail(waited.error());
  for (std::size_t i = 0; i < replies.size(); ++i) {
    (replies[i]->ready() && out.ready.size() < count ? out.ready : out.rest).push_back(i);
  }
  return out;
}

}  // namespace shoal::actors::api
