// The answer to a call, for threads that wait and coroutines that await.
//
// A Future is a value (copies share the answer) and must not outlive its Context. Errors keep their first cause and their path: "method
// add", "actor Counter(3f..)", "rank 1".
//
// As an argument of a call it stands for its value, unless the parameter is a Future. There, and inside other values (a vector, a class's
// field), it is a reference: the receiver waits for the value or passes it on. The object lives while any process holds a reference, and
// the process of its call or put() lives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "actors/api/codec.h"
#include "actors/api/running.h"
#include "actors/session/session.h"
#include "runtime/core/check.h"
#include "runtime/loop/task.h"

namespace shoal {

using runtime::Duration;
using runtime::Task;
inline constexpr Duration kForever = Duration::max();
class BytesView;
struct Waited;

}  // namespace shoal

namespace shoal::actors::api {

// The name by which other processes get a value, once a reference to it has left this process.
struct Name {
  ObjectKey object;
  WorkerId owner;
  std::shared_ptr<const void> hold;  // keeps the object
};

// The part of a Context that its handles and futures use.
struct Hub {
  Hub(Session& s, std::string who) : session(s), caller(std::move(who)) {}

  Session& session;
  std::string caller;         // describes this process in errors
  std::uint64_t wakeups = 0;  // coroutines whose future became ready; only while the loop is owned
  // The thread that runs remote functions, in a worker. It lends its CPUs during long waits, and stops waiting when its call is
  // cancelled.
  std::thread::id function_in;
  CancelledCalls cancelled = {};

  // SessionLoop::wait for user code. Returns Cancelled/TaskCancelled in a cancelled remote function.
  Result<void> wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);
  // Publishes a value of this process, ready or not; the name is reused while it is held. `call`: what a cancellation of the object
  // cancels.
  Name publish(const ValueFuture& future, const ValueFuture& call);

 private:
  struct Published;
  std::map<const void*, std::weak_ptr<const Published>> published_ = {};  // by the future's identity; only while the loop is owned
  std::size_t sweep_at_ = 64;
};

// Where an answer comes from: an actor, or, without one, a remote function or put().
struct Callee {
  ActorId actor;
  std::string_view class_name;
  std::int32_t rank = -1;  // in its mesh; -1 for a single actor
};

// For a future that is not itself the answer to a call of this process: where its value comes from.
struct Origin {
  Origin(ValueFuture c, Name n) : call(std::move(c)), name(std::move(n)) {}
  const ValueFuture call;  // for one of several results, the answer with all of them
  const Name name;         // the name of a future that came from another process, or of the answer with all results
  // The value of a future that came from another process, once it is requested.
  mutable std::once_flag asked = {};
  mutable ValueFuture value = {};
};

// The untyped answer to a call.
class Reply {
 public:
  Reply() = default;
  Reply(Hub& hub, Callee callee, std::string_view method, ValueFuture future)
      : hub_(&hub), callee_(callee), method_(method), future_(std::move(future)) {}
  // A future from another process. Its value is requested at first use, since a process that only passes it on needs no copy.
  static Reply borrowed(Hub& hub, const ObjectKey& object, WorkerId owner);

  bool valid() const { return future_.valid() || is_borrowed(); }
  bool ready() const {
    SHOAL_CHECK(valid(), "ready() of an empty future");
    return future().ready();
  }
  // Runs the loop until the answer is ready. Returns DeadlineExceeded, or an error of SessionLoop::wait.
  Result<void> wait(Duration timeout) const;
  // The same as a coroutine, in the thread that runs it (Context::run).
  static Task<void> until_ready(Reply reply);
  // The future of the value. The first call may request the value, so it must not come while the loop is owned.
  const ValueFuture& future() const { return is_borrowed() ? asked() : future_; }
  // The future for a call with this argument; it keeps the object until it is ready.
  ValueFuture as_argument() const;
  // The name by which other processes refer to it.
  Name name() const;
  // Another of the same call's values.
  Reply with(ValueFuture future) const { return Reply(*hub_, callee_, method_, std::move(future)); }
  // The answer's `count` results.
  std::vector<Reply> split(std::size_t count) const;
  Result<void> cancel(CancelHow how) const;
  // A ready answer's decoded value, or its error.
  template <class T>
  Result<T> result() const {
    SHOAL_TRY(const Value* const value, good());
    auto decoded = decode_result<T>(*value, hub_);
    if (!decoded) return fail(located(std::move(decoded).error()));
    return decoded;
  }
  // The bytes of a ready answer of type Bytes.
  Result<BytesView> view() const;
  // The error, with its path (see above) appended.
  Error located(Error error) const;

 private:
  bool is_borrowed() const { return !future_.valid() && origin_ != nullptr; }
  const ValueFuture& asked() const;
  Result<const Value*> good() const;
  // Copies one of several results into a memory of its own, as it has to be before it is passed on. This may wait for room.
  void stand_alone() const;

  friend Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout);
  friend Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout);
  Hub* hub_ = nullptr;
  Callee callee_;
  std::string_view method_;
  ValueFuture future_;
  std::shared_ptr<const Origin> origin_;  // null unless the value comes from elsewhere (Origin)
};

// A failed answer of the same call, with `error`.
Reply failed_reply(const Reply& of, const Error& error);

// Writes the item of a future inside a value: null for an empty one.
void write_reply(CborWriter& to, const Reply& reply);
bool read_reply(CborReader& from, Reply& out);

// Waits until all are ready or one has failed. Returns the index of the first failure, else their number.
Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout);

// Makes a reply that is ready, with `value`.
Reply ready_reply(Hub& hub, const Callee& callee, std::string_view method, Result<Value> value);

template <class T, class E>
inline constexpr bool kIsTask<asio::awaitable<Result<T>, E>> = true;
template <class T, class E>
struct ReturnedType<asio::awaitable<Result<T>, E>> : ReturnedType<T> {};

template <class T>
struct Gathered {
  using Type = std::vector<T>;
};
template <>
struct Gathered<void> {
  using Type = void;
};

template <class T>
Task<T> await(Reply reply) {
  const auto ready = co_await Reply::until_ready(reply);
  if (!ready) co_return fail(reply.located(ready.error()));
  co_return reply.template result<T>();
}

}  // namespace shoal::actors::api

namespace shoal {

// Bytes in the memory in which they arrived; large ones are in shared memory that other processes may read too. Valid while a copy of
// this lives.
class BytesView {
 public:
  BytesView(actors::Value value, std::span<const std::byte> bytes) : value_(std::move(value)), bytes_(bytes) {}
  std::span<const std::byte> span() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }

 private:
  actors::Value value_;
  std::span<const std::byte> bytes_;
};

// Indices of the futures that are ready, and of the rest, in the given order.
struct Waited {
  std::vector<std::size_t> ready, rest;
};

template <class T>
class Future;

}  // namespace shoal

namespace shoal::actors::api {

template <class T>
struct Results;
template <class... T>
struct Results<std::tuple<T...>> {
  using Type = std::tuple<Future<T>...>;
  static Type of(const Reply& reply) {
    auto parts = reply.split(sizeof...(T));
    auto part = parts.begin();
    return Type{Future<T>(std::move(*part++))...};  // the elements of a braced list are evaluated in order
  }
};

}  // namespace shoal::actors::api

namespace shoal {

template <class T>
class Futures;

// As an argument of a call it stands for its value: the call runs once it is ready, and fails with its error.
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
  // The same for Bytes, without a copy.
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
    return actors::api::Results<T>::of(reply_);
  }
  // For a coroutine in Context::run: co_await future.async().
  Task<T> async() const { return actors::api::await<T>(reply_); }

  const actors::api::Reply& reply() const { return reply_; }

 private:
  friend class Futures<T>;
  actors::api::Reply reply_;
};

// The answers of a mesh's actors to the same call, by rank.
template <class T>
class [[nodiscard]] Futures {
 public:
  explicit Futures(std::vector<Future<T>> futures) : futures_(std::move(futures)) {}

  std::size_t size() const { return futures_.size(); }
  const Future<T>& operator[](std::size_t rank) const { return futures_[rank]; }
  auto begin() const { return futures_.begin(); }
  auto end() const { return futures_.end(); }

  // All results by rank (void: none), or the error of the first failure, without waiting for the others.
  Result<typename actors::api::Gathered<T>::Type> get(Duration timeout = kForever) const {
    std::vector<const actors::api::Reply*> replies;
    for (const auto& f : futures_) replies.push_back(&f.reply_);
    SHOAL_TRY(const std::size_t failed, actors::api::wait_all(replies, timeout));
    if (failed < size()) return fail(futures_[failed].get().error());
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      std::vector<T> out;
      for (const auto& f : futures_) {
        SHOAL_TRY(T value, f.get());
        out.push_back(std::move(value));
      }
      return out;
    }
  }

 private:
  std::vector<Future<T>> futures_;
};

}  // namespace shoal

namespace shoal::actors::api {

template <class T>
struct ReferenceTo<Future<T>> {
  static constexpr bool kIs = true;
  using Value = T;
  static ValueFuture future(const Future<T>& f) { return f.reply().as_argument(); }
};

// Waits until `count` are ready or the time is over, which is no error.
Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout);

}  // namespace shoal::actors::api

namespace shoal {

// Waits until `num_ready` are ready or the time is over. `ready` has at most that many, failed ones included. Returns InvalidArgument for a
// duplicate future, and for a `num_ready` that is not between 1 and their number.
template <class T>
Result<Waited> wait(const std::vector<Future<T>>& futures, std::size_t num_ready = 1, Duration timeout = kForever) {
  std::vector<const actors::api::Reply*> replies;
  for (const auto& f : futures) replies.push_back(&f.reply());
  return actors::api::wait_some(replies, num_ready, timeout);
}

struct CancelOptions {
  bool force = false;     // end the process of a running function; InvalidArgument for a method, whose actor ends by Context::kill
  bool recursive = true;  // cancel the calls made within it, too
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
