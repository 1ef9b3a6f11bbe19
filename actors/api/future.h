// The answer to a call: waited for by a thread, or awaited by a coroutine.
//
// A Future is a value (copies share the answer) and lives no longer than its Context. Errors come with their first cause and with where
// they passed: "method add", "actor Counter(3f..)", "rank 1".
//
// As an argument of a call it stands for its value, unless the parameter is a Future itself. There, and inside of other values (a vector of
// them, a field of a class), it stays a reference: whoever gets it waits for the value, asks for it when he wants it, or passes it on. What
// it refers to lives as long as somebody has a reference to it, and as the process whose call or put() it is.
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

// What a value is called where other processes get it from, once a reference to it has left this one.
struct Name {
  ObjectKey object;
  WorkerId owner;
  std::shared_ptr<const void> hold;  // as long as this lives, so does the object
};

// What handles and futures share of their Context.
struct Hub {
  Hub(Session& s, std::string who) : session(s), caller(std::move(who)) {}

  Session& session;
  std::string caller;         // of its calls, for errors
  std::uint64_t wakeups = 0;  // of coroutines whose future became ready; belongs to the loop's owner
  // The thread that runs remote functions, in their workers: it lends its CPUs while it waits for long, and waits no longer when its call
  // is cancelled.
  std::thread::id function_in;
  CancelledCalls cancelled = {};

  // Session::wait for user code. In a remote function that is cancelled: Cancelled/TaskCancelled.
  Result<void> wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);
  // Gives the node a value of this process, which may not be there yet; the same name again as long as somebody holds it. `call`: what is
  // cancelled when nobody wants it any more.
  Name publish(const ValueFuture& future, const ValueFuture& call);

 private:
  struct Published;
  std::map<const void*, std::weak_ptr<const Published>> published_ = {};  // by what their futures are; the loop's owner's
  std::size_t sweep_at_ = 64;
};

// Whose answer it is. No actor: a remote function's, or a value that was put.
struct Callee {
  ActorId actor;
  std::string_view class_name;
  std::int32_t rank = -1;  // in its mesh; -1 for one that was spawned alone
};

// Of a future that is no answer to a call of this process.
struct Origin {
  Origin(ValueFuture c, Name n) : call(std::move(c)), name(std::move(n)) {}
  const ValueFuture call;  // of one of several results: the answer that they are in
  const Name name;         // of one that came from elsewhere; of several results, what that answer is called
  // Of one that came from elsewhere: its value, once somebody has asked for it.
  mutable std::once_flag asked = {};
  mutable ValueFuture value = {};
};

// A call under way, before its result has a type.
class Reply {
 public:
  Reply() = default;
  Reply(Hub& hub, Callee callee, std::string_view method, ValueFuture future)
      : hub_(&hub), callee_(callee), method_(method), future_(std::move(future)) {}
  // One that another process has passed on. Its value is not asked for before somebody wants it: who only passes it on needs no copy.
  static Reply borrowed(Hub& hub, const ObjectKey& object, WorkerId owner);

  bool valid() const { return future_.valid() || is_borrowed(); }
  bool ready() const {
    SHOAL_CHECK(valid(), "a future of nothing is asked");
    return future().ready();
  }
  // Serves the loop until the answer is there. DeadlineExceeded, or what Session::wait says.
  Result<void> wait(Duration timeout) const;
  // The same as a coroutine, in the thread that runs it (Context::run).
  static Task<void> until_ready(Reply reply);
  // The first time not while the loop is owned: it may have to be asked for.
  const ValueFuture& future() const { return is_borrowed() ? asked() : future_; }
  // The same for a call whose argument it is: what it refers to stays until it is there.
  ValueFuture as_argument() const;
  // For others to refer to it.
  Name name() const;
  // Another value of the same call.
  Reply with(ValueFuture future) const { return Reply(*hub_, callee_, method_, std::move(future)); }
  // The `count` results that the answer is to consist of.
  std::vector<Reply> split(std::size_t count) const;
  Result<void> cancel(CancelHow how) const;
  // Of one that is ready: its value, decoded by `decode`, or why there is none.
  template <class T>
  Result<T> result() const {
    SHOAL_TRY(const Value* const value, good());
    auto decoded = decode_result<T>(*value, hub_);
    if (!decoded) return fail(located(std::move(decoded).error()));
    return decoded;
  }
  // Of Bytes.
  Result<BytesView> view() const;
  // The error with where it passed.
  Error located(Error error) const;

 private:
  bool is_borrowed() const { return !future_.valid() && origin_ != nullptr; }
  const ValueFuture& asked() const;
  Result<const Value*> good() const;
  // One of several results gets a memory of its own before it is passed on: here, where that may wait for room.
  void stand_alone() const;

  friend Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout);
  friend Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout);
  Hub* hub_ = nullptr;
  Callee callee_;
  std::string_view method_;
  ValueFuture future_;
  std::shared_ptr<const Origin> origin_;  // null of most
};

// Of the same call: it failed with this.
Reply failed_reply(const Reply& of, const Error& error);

// A future inside of a value; null when it is of nothing.
void write_reply(CborWriter& to, const Reply& reply);
bool read_reply(CborReader& from, Reply& out);

// Waits until all are ready or one has failed: the index of the one that failed first, else their number.
Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout);

// Of something that is there already.
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

// Bytes in the memory in which they came, which other processes may read as well: large ones lie in a shared one. Valid as long as a copy
// of this lives.
class BytesView {
 public:
  BytesView(actors::Value value, std::span<const std::byte> bytes) : value_(std::move(value)), bytes_(bytes) {}
  std::span<const std::byte> span() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }

 private:
  actors::Value value_;
  std::span<const std::byte> bytes_;
};

// Which of several futures are ready, and which are not, in the order in which they were given.
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
    return Type{Future<T>(std::move(*part++))...};  // in order, as braces are
  }
};

}  // namespace shoal::actors::api

namespace shoal {

template <class T>
class Futures;

// As an argument of a call it stands for its value: the call runs once that is there, and fails with the future's error.
template <class T>
class [[nodiscard]] Future {
 public:
  using Value = T;

  Future() = default;  // of nothing: only to be assigned to
  explicit Future(actors::api::Reply reply) : reply_(std::move(reply)) {}

  bool valid() const { return reply_.valid(); }  // false of nothing
  bool ready() const { return reply_.ready(); }
  // Blocks this thread, which serves the process's loop meanwhile. May be asked again. DeadlineExceeded when the time is over: the call
  // goes on.
  Result<T> get(Duration timeout = kForever) const {
    if (const auto waited = reply_.wait(timeout); !waited) return fail(waited.error());
    return reply_.template result<T>();
  }
  // The same of Bytes, where they lie: nothing is copied.
  Result<BytesView> view(Duration timeout = kForever) const
    requires std::is_same_v<T, Bytes>
  {
    if (const auto waited = reply_.wait(timeout); !waited) return fail(waited.error());
    return reply_.view();
  }
  // Of a method that returns a tuple (with none in it): its results as futures of their own, each of which can be passed on without the
  // others. Cancelling one cancels the call.
  //   const auto [q, r] = handle.call(&Divider::divide, 7, 2).results();
  auto results() const
    requires(actors::api::kNumResults<T> > 0)
  {
    return actors::api::Results<T>::of(reply_);
  }
  // In a coroutine that Context::run runs: co_await future.async().
  Task<T> async() const { return actors::api::await<T>(reply_); }

  const actors::api::Reply& reply() const { return reply_; }

 private:
  friend class Futures<T>;
  actors::api::Reply reply_;
};

// The answers of a mesh, by rank.
template <class T>
class [[nodiscard]] Futures {
 public:
  explicit Futures(std::vector<Future<T>> futures) : futures_(std::move(futures)) {}

  std::size_t size() const { return futures_.size(); }
  const Future<T>& operator[](std::size_t rank) const { return futures_[rank]; }
  auto begin() const { return futures_.begin(); }
  auto end() const { return futures_.end(); }

  // All results by rank (of void: nothing), or the error of the first that failed, without waiting for the others.
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

// Until `count` are ready or the time is over, which is no error.
Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout);

}  // namespace shoal::actors::api

namespace shoal {

// Waits until `num_ready` of them are ready or the time is over: at most that many are in `ready`, those that failed among them.
// InvalidArgument for a future that stands there twice, and for a number that is not between 1 and theirs.
template <class T>
Result<Waited> wait(const std::vector<Future<T>>& futures, std::size_t num_ready = 1, Duration timeout = kForever) {
  std::vector<const actors::api::Reply*> replies;
  for (const auto& f : futures) replies.push_back(&f.reply());
  return actors::api::wait_some(replies, num_ready, timeout);
}

struct CancelOptions {
  bool force = false;     // a function that runs ends with its process. InvalidArgument of methods: actors end by Context::kill
  bool recursive = true;  // the calls that it made, too
};

// Nobody wants the result of this call any more: the future, and calls that have it as an argument, fail with Cancelled/TaskCancelled. What
// has not begun never will. A method or a function that runs is told (is_cancelled()), and goes on to its end: what it returns is what the
// call comes to; a coroutine ends where it awaits something, and a function where it waits for a future. Nothing happens to what is done,
// or was put. A future of another process is cancelled by that one: this waits for it up to 30 seconds.
template <class T>
Result<void> cancel(const Future<T>& future, const CancelOptions& options = {}) {
  return future.reply().cancel({options.recursive, options.force});
}

// A reference, where it does not stand for its value.
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
