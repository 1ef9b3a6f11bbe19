// The answer to a call, for threads that wait and coroutines that await.
//
// A Future is a value (copies share the answer) and must not outlive its Context. Errors keep their first cause and their path: "method
// add", "actor Counter(3f..)", "rank 1".
//
// As an argument of a call a future stands for its value. For a parameter of type Future, and inside other values (a vector, a class's
// field), it is a reference: the receiver waits for the value or passes it on. The value then lies at the node of its owner, the
// process that made the call or put(). The node keeps it while any process holds a reference, also after the owner's end. If the owner ends
// before the value is there, the future fails as Unavailable/OwnerDied.
#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/api/codec/codec.h"
#include "actors/api/codec/items.h"
#include "actors/api/codec/names.h"
#include "actors/api/context/reply.h"
#include "runtime/loop/task.h"

namespace shoal {

inline constexpr Duration kForever = Duration::max();

}  // namespace shoal

namespace shoal::actors::api {

template <class T, class E>
inline constexpr bool kIsTask<asio::awaitable<Result<T>, E>> = true;
template <class T, class E>
struct ReturnedType<asio::awaitable<Result<T>, E>> : ReturnedType<T> {};

template <class T>
Task<T> await(Reply reply) {
  const auto ready = co_await Reply::until_ready(reply);
  if (!ready) co_return fail(reply.located(ready.error()));
  co_return reply.template result<T>();
}

}  // namespace shoal::actors::api

namespace shoal {

template <class T>
class Future;

}  // namespace shoal

namespace shoal::actors::api {

template <class T>
struct Results;
template <class... T>
struct Results<std::tuple<T...>> {
  using Type = std::tuple<Future<T>...>;
  static Type from_reply(const Reply& reply) {
    auto parts = reply.split(sizeof...(T));
    auto part = parts.begin();
    return Type{Future<T>(std::move(*part++))...};  // the elements of a braced list are evaluated in order
  }
};

}  // namespace shoal::actors::api

namespace shoal {

// As an argument of a call, a Future stands for its value: the call runs once the value is there, and fails if the future fails.
template <class T>
class [[nodiscard]] Future {
 public:
  using Value = T;

  Future() = default;  // empty: only to be assigned to
  explicit Future(actors::api::Reply reply) : reply_(std::move(reply)) {}

  bool valid() const { return reply_.valid(); }  // false if empty
  bool ready() const { return reply_.ready(); }
  // Blocks this thread, which runs the process's loop meanwhile. May be called again. DeadlineExceeded does not stop the call.
  Result<T> get(Duration timeout = kForever) const {
    if (const auto waited = reply_.wait(timeout); !waited) return fail(waited.error());
    return reply_.template result<T>();
  }
  // As get(), for Bytes, without a copy.
  Result<BytesView> view(Duration timeout = kForever) const
    requires std::is_same_v<T, Bytes>
  {
    if (const auto waited = reply_.wait(timeout); !waited) return fail(waited.error());
    return reply_.view();
  }
  // For a method that returns a tuple (with no tuple in it): its results as separate futures, each of which can be passed on alone.
  // Cancelling one cancels the call.
  //   const auto [q, r] = handle.call(&Divider::divide, 7, 2).results();
  auto results() const
    requires(actors::api::kNumResults<T> > 0)
  {
    return actors::api::Results<T>::from_reply(reply_);
  }
  // For a coroutine in Context::run: co_await future.async().
  Task<T> async() const { return actors::api::await<T>(reply_); }

  const actors::api::Reply& reply() const { return reply_; }

 private:
  actors::api::Reply reply_;
};

}  // namespace shoal

namespace shoal::actors::api {

template <class T>
struct ReferenceTo<Future<T>> {
  static constexpr bool kIs = true;
  using Value = T;
  static ValueFuture future(const Future<T>& f) { return f.reply().as_argument(); }
};

}  // namespace shoal::actors::api

namespace shoal {

// Waits until `num_ready` of the futures are ready or the time is over. Waited::ready has at most that many, failed ones included. Returns
// InvalidArgument for a duplicate future, and for a `num_ready` below 1 or above the number of futures.
template <class T>
Result<Waited> wait(const std::vector<Future<T>>& futures, std::size_t num_ready = 1, Duration timeout = kForever) {
  std::vector<const actors::api::Reply*> replies;
  for (const auto& f : futures) replies.push_back(&f.reply());
  return actors::api::wait_some(replies, num_ready, timeout);
}

struct CancelOptions {
  bool force = false;     // end the process of a running function; InvalidArgument for a method, whose actor ends by Context::kill
  bool recursive = true;  // also cancel the calls that the cancelled call has made
};

// Cancels a call: its future, and calls with it as an argument, fail with Cancelled/TaskCancelled. A call that has not begun never
// begins. A running method or function goes on unless it checks is_cancelled(), and its result counts. A coroutine ends at its next
// await, a function when it waits for a future. No effect on finished calls and put(). For another process's future this waits up to 30
// seconds for that process.
template <class T>
Result<void> cancel(const Future<T>& future, const CancelOptions& options = {}) {
  return future.reply().cancel({options.recursive, options.force});
}

// A future inside another value is a reference, and does not stand for its value.
template <class T>
struct Codec<Future<T>> {
  static void write(actors::api::CborWriter& to, const Future<T>& future) { actors::api::write_reply(to, future.reply()); }
  static bool read(actors::api::CborReader& from, Future<T>& out) {
    actors::api::Reply reply;
    if (!actors::api::read_reply(from, reply)) return false;
    out = Future<T>(std::move(reply));
    return true;
  }
};

}  // namespace shoal
