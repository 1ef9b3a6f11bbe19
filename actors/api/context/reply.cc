#include "actors/api/context/reply.h"

#include <algorithm>

#include <asio/post.hpp>
#include <asio/this_coro.hpp>

#include <fmt/format.h>

#include "actors/api/codec/write_items.h"
#include "actors/session/session.h"

namespace shoal::actors::api {

Reply ready_reply(Hub& hub, const Callee& callee, std::string_view method, Result<Value> value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return Reply(hub, callee, method, promise.future());
}

Result<const Value*> Reply::good() const {
  const auto& value = future().peek();
  if (!value) return fail(located(value.error()));
  if (value->raised()) return fail(located(raised_error(*value)));
  return &*value;
}

Result<BytesView> Reply::view() const {
  SHOAL_TRY(const Value* const value, good());
  const auto pieces = value->pieces();
  if (pieces.size() != 2) return fail(located(invalid_argument("the result is not of type Bytes")));
  return BytesView(*value, pieces[1]);
}

Reply Reply::borrowed(Hub& hub, const ObjectKey& object, WorkerId owner) {
  Name name{object, owner, hub.session.objects().references().hold({object})};
  Reply out(hub, {}, {}, {});
  out.origin_ = std::make_shared<const Origin>(ValueFuture(), std::move(name));
  return out;
}

const ValueFuture& Reply::requested() const {
  std::call_once(origin_->requested, [this] { origin_->value = hub_->session.objects().fetch(origin_->name.object, origin_->name.owner); });
  return origin_->value;
}

void Reply::stand_alone() const {
  if (is_borrowed() || !ready()) return;  // a fetched value has its own memory already
  const auto& value = future_.peek();
  // If the node's limit leaves no room, nothing is copied now, and the call copies the value into memory outside the limit.
  if (value && value->shared() && !value->whole()) (void)value->own_memory(&hub_->session.objects().memory());
}

ValueFuture Reply::as_argument() const {
  stand_alone();
  const ValueFuture& value_of_it = future();
  if (origin_ == nullptr || origin_->name.hold == nullptr || value_of_it.ready()) return value_of_it;
  const runtime::Promise<Value> promise;
  hub_->session.loop().own([&] { value_of_it.then([promise, origin = origin_](const Result<Value>& value) { promise.set(value); }); });
  return promise.future();
}

Name Reply::name() const {
  stand_alone();
  const bool is_part = origin_ != nullptr && origin_->call.valid();
  if (origin_ != nullptr && !is_part) return origin_->name;
  return hub_->publish(future_, is_part ? origin_->call : future_);
}

std::vector<Reply> Reply::split(std::size_t count) const {
  SHOAL_CHECK(valid(), "split() of an empty future");
  const ValueFuture& whole = future();
  const auto origin = std::make_shared<const Origin>(whole, origin_ ? origin_->name : Name());
  std::vector<Reply> out;
  for (auto& part : hub_->session.calls().split(whole, count)) {
    out.emplace_back(*hub_, callee_, method_, std::move(part));
    out.back().origin_ = origin;
  }
  return out;
}

Result<void> Reply::cancel(CancelHow how) const {
  if (!is_borrowed() && ready()) return {};
  Result<void> cancelled;
  if (origin_ != nullptr && origin_->name.object.id) {
    cancelled = hub_->session.objects().cancel(origin_->name.object, origin_->name.owner, how);
  } else {
    const ValueFuture call = origin_ ? origin_->call : future_;
    cancelled = hub_->session.calls().cancel({[call] { return call; }, [] {}}, how);
  }
  if (!cancelled) return fail(located(cancelled.error()));
  return {};
}

Reply failed_reply(const Reply& source, const Error& error) {
  const runtime::Promise<Value> promise;
  promise.set(fail(error));
  return source.with(promise.future());
}

void write_reply(CborWriter& to, const Reply& reply) {
  if (!reply.valid()) return to.simple(kNull);
  Name name = reply.name();
  to.head(Major::kTag, kFutureTag);
  write_item(to, std::tuple(name.object.job, name.object.id, name.object.home, name.owner));
  to.refers_to(name.object, std::move(name.hold));
}

bool read_reply(CborReader& from, Reply& out) {
  if (from.take_if(kNull)) return true;
  if (!from.take_tag(kFutureTag)) return from.fail("a future was expected");
  std::tuple<JobId, ObjectId, NodeId, WorkerId> name;
  if (!read_item(from, name)) return false;
  if (from.hub == nullptr) return from.fail("a future was received without a Context");
  const auto& [job, id, home, owner] = name;
  out = Reply::borrowed(*from.hub, {job, id, home}, owner);
  return true;
}

Error Reply::located(Error error) const {
  if (!callee_.actor && method_.empty()) return error;  // the future comes from another process, without its method and actor
  if (!callee_.actor) return std::move(error).in(fmt::format("function {}", method_));
  const std::string actor = fmt::format("actor {}({})", callee_.class_name, to_string(callee_.actor));
  // An error about an actor's death names the actor already.
  const bool named = !error.context().empty() && error.context().back() == actor;
  Error out = std::move(error).in(fmt::format("method {}", method_));
  if (!named) out = std::move(out).in(actor);
  if (callee_.rank >= 0) out = std::move(out).in(fmt::format("rank {}", callee_.rank));
  return out;
}

Result<void> Reply::wait(Duration timeout) const {
  if (ready()) return {};
  const auto waited = hub_->wait([this] { return future().ready(); }, hub_->session.loop().deadline_in(timeout));
  if (!waited) return fail(located(waited.error()));
  return {};
}

Task<void> Reply::until_ready(Reply reply) {
  if (reply.ready()) co_return Result<void>();
  // A cancelled coroutine is destroyed before its future is ready, and must not be resumed then.
  struct Waiting {
    Session& session;
    std::shared_ptr<bool> loop_owned = std::make_shared<bool>(true);
    ~Waiting() {
      session.loop().own([this] { *loop_owned = false; });
    }
  };
  Hub& hub = *reply.hub_;
  const Waiting waiting{hub.session};
  const auto executor = co_await asio::this_coro::executor;
  std::function<void(std::function<void(Result<void>)>)> start = [&hub, executor, loop_owned = waiting.loop_owned,
                                                                  future = reply.future()](std::function<void(Result<void>)> on_end) {
    hub.session.loop().own([&] {
      future.then([&hub, executor, loop_owned, on_end](const Result<Value>&) {
        if (!*loop_owned) return;
        asio::post(executor, [on_end] { on_end(Result<void>()); });
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
  for (const Reply* r : replies) (void)r->future();  // requests values of other processes, so that all transfers begin now
  session.loop().own([&] {
    for (std::size_t i = 0; i < replies.size(); ++i) {
      replies[i]->future().then([tally, i, all = replies.size()](const Result<Value>& value) {
        ++tally->ready;
        if ((!value || value->raised()) && tally->failed == all) tally->failed = i;
      });
    }
  });
  const auto over = [&] { return tally->ready == replies.size() || tally->failed < replies.size(); };
  const auto waited = replies[0]->hub_->wait(over, session.loop().deadline_in(timeout));
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
    return fail(
        invalid_argument(fmt::format("wait() takes a count from 1 to {} for {} futures, not {}", replies.size(), replies.size(), count)));
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
  const auto waited = hub.wait(enough, hub.session.loop().deadline_in(timeout));
  if (!waited && waited.error().code() != Code::kDeadlineExceeded) return fail(waited.error());
  for (std::size_t i = 0; i < replies.size(); ++i) {
    (replies[i]->ready() && out.ready.size() < count ? out.ready : out.rest).push_back(i);
  }
  return out;
}

}  // namespace shoal::actors::api
