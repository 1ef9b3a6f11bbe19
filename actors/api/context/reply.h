// The untyped answer to a call: Future (future.h) adds the type. Errors keep their first cause and their path.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/codec/decode.h"
#include "actors/api/context/hub.h"
#include "runtime/core/check.h"
#include "runtime/loop/task.h"

namespace shoal {

using runtime::Duration;
using runtime::Task;

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

}  // namespace shoal

namespace shoal::actors::api {

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
  mutable std::once_flag requested = {};
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
  // Waits without a deadline, in a coroutine, which resumes in the thread that runs it (Context::run).
  static Task<void> until_ready(Reply reply);
  // The future of the value. The first call may request the value, so it must not come while the loop is owned.
  const ValueFuture& future() const { return is_borrowed() ? requested() : future_; }
  // The future to pass on if this answer is an argument of a call. The future keeps the object until the value is ready.
  ValueFuture as_argument() const;
  // The name by which other processes refer to the value.
  Name name() const;
  // The reply for `future`, which is another value of the same call.
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
  const ValueFuture& requested() const;
  Result<const Value*> good() const;
  // If the call had several results, copies this one to memory of its own: passing it on would else pass all of them. May wait for room.
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
Reply failed_reply(const Reply& source, const Error& error);

// Writes the item of a future inside a value: null for an empty one.
void write_reply(CborWriter& to, const Reply& reply);
bool read_reply(CborReader& from, Reply& out);

// Waits until all are ready or one has failed. Returns the index of the first failure, else their number.
Result<std::size_t> wait_all(const std::vector<const Reply*>& replies, Duration timeout);

// Makes a reply that is ready, with `value`.
Reply ready_reply(Hub& hub, const Callee& callee, std::string_view method, Result<Value> value);
// Waits until `count` are ready or the time is over, which is no error.
Result<Waited> wait_some(const std::vector<const Reply*>& replies, std::size_t count, Duration timeout);

}  // namespace shoal::actors::api
