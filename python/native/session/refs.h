// The native part of ObjectRef and its derivatives: parts of a result, readiness notifications, repeated attempts.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/session.h"
#include "python/native/bindings.h"
#include "python/native/session/session.h"
#include "runtime/core/fd.h"

namespace shoal::python {

actors::Value::Pieces pieces_of(const nb::bytes& head, const std::vector<ReadBuffer>& buffers);
class Ref;
// Makes a value from a pickle and its buffers; a large one is copied without the GIL. `refs` were pickled with it.
Result<actors::Value> make_value(actors::Session& session, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
                                 const std::vector<Ref*>& refs, actors::Value::Kind kind = actors::Value::Kind::kResult);
// Adds references to the value, which then keeps their objects alive.
void refer(actors::Value& value, const std::vector<Ref*>& refs);
// The value as (value head, [buffer, ...]). A small head is a bytes object; all other pieces are read-only views of the memory in which
// they lie. All conversions of one value share that memory. A value with tensors gets a private copy, as tensors cannot be read-only.
nb::tuple to_python(const actors::Value& given);

// A tally counts the refs among `total` that are ready, and records whether one failed. The loop updates it.
struct Tally {
  std::size_t total = 0;
  std::size_t ready = 0;
  bool failed = false;
};

// Copies parts of results into memories of their own, which has to happen before they are passed on. Not on the loop, because the copying
// may wait for room.
void stand_alone(actors::Session& session, const std::vector<Ref*>& refs);

// The native part of an ObjectRef: a value that is there or will be.
class Ref {
 public:
  // For a ref derived from a call's answer: that answer, and whether the ref was cancelled. Loop only.
  struct Source {
    actors::ValueFuture call;
    bool cancelled = false;
    // The number of a call that may be repeated, once it was made.
    std::uint64_t task = 0;
    std::shared_ptr<std::int32_t> attempts = std::make_shared<std::int32_t>(0);  // number of attempts made, shared with ActorCalls
  };
  explicit Ref(actors::ValueFuture future, std::shared_ptr<Source> source = {}) : future_(std::move(future)), source_(std::move(source)) {}
  // A ref to an object that the node has; `hold` keeps the object.
  Ref(actors::ValueFuture future, actors::ObjectKey object, std::shared_ptr<const void> hold) : future_(std::move(future)) {
    name(object, std::move(hold));
  }
  void name(actors::ObjectKey object, std::shared_ptr<const void> hold) {
    object_ = object;
    hold_ = std::move(hold);
  }
  const actors::ObjectKey& object() const { return object_; }
  const std::shared_ptr<const void>& hold() const { return hold_; }
  const actors::ValueFuture& future() const { return future_; }
  const std::shared_ptr<Source>& source() const { return source_; }
  // Number of the call of this process that made the ref; 0: none.
  std::uint64_t task() const { return task_ == 0 && source_ ? source_->task : task_; }
  Ref&& of_task(std::uint64_t task) && {
    task_ = task;
    return std::move(*this);
  }
  void follows(const Ref& other) { task_ = other.task(); }
  // The future to cancel for this ref, and a callback that marks the cancellation.
  actors::ToCancel to_cancel() const {
    if (!source_) return {[future = future_] { return future; }, [] {}};
    return {[source = source_] { return source->call; }, [source = source_] { source->cancelled = true; }};
  }
  bool ready() const { return future_.ready(); }
  // Lets a tally count this ref until leave(), once the ref is ready. Repeated waits leave nothing behind in the future. Loop only.
  void follow(const std::shared_ptr<Tally>& tally) const;
  void leave(const std::shared_ptr<Tally>& tally) const;
  bool failed() const { return !future_.peek() || future_.peek()->raised(); }
  // The id of its value in reports about this process. If it has none yet, it gets `fresh`. Any thread.
  std::string known_as(const std::string& fresh) const;
  bool raised() const { return future_.peek() && future_.peek()->raised(); }
  // The value as (value head, buffers), like to_python(). Raises if the result is an Error.
  nb::tuple value() const;

 private:
  using Followers = std::vector<std::shared_ptr<Tally>>;
  actors::ValueFuture future_;
  std::shared_ptr<Source> source_;
  mutable std::shared_ptr<Followers> followers_;  // set by the first follow(); loop only
  actors::ObjectKey object_;                      // set once published
  std::shared_ptr<const void> hold_;
  std::uint64_t task_ = 0;
};

// The futures of these refs, for a call's arguments. Each object is held until its value is ready, even if its reference is dropped. With
// the GIL.
std::vector<actors::ValueFuture> futures_of(actors::Session& session, const std::vector<Ref*>& refs);

// Reports to Python which refs have become ready, by the numbers given to add(): `fd` is readable once there are some.
//
// The loop's handler only notes the number. It never takes the GIL, as a thread that holds the GIL may wait for the loop. Any thread may
// call any member.
class Readiness {
 public:
  Readiness();
  int fd() const { return noted_->event.get(); }
  // Each number is noted once, in the order in which the refs become ready.
  void add(actors::Session& session, const actors::ValueFuture& future, std::uint64_t number) const;
  void note(std::uint64_t number) const { noted_->push(number); }
  std::vector<std::uint64_t> take() const;

 private:
  struct Node {
    std::uint64_t number;
    Node* next;
  };
  struct Noted {
    Fd event;
    std::atomic<Node*> last{nullptr};
    void push(std::uint64_t number);
    ~Noted();
  };
  std::shared_ptr<Noted> noted_;
};

// The attempts of a method call that may be repeated; its result is that of the final one.
class Attempts {
 public:
  Ref ref() const { return Ref(promise_.future(), source_); }
  // Calls `actor`. The attempt's result is final unless the process died (or, with `judge_raised`, the method raised). Then `number` is
  // noted, and the caller of take() calls start() again, or settle(). A cancelled call makes no attempt.
  Ref start(actors::Session& session, actors::Call call, std::vector<actors::ValueFuture> deps, bool judge_raised, Readiness readiness,
            std::uint64_t number) const;
  // Makes this attempt's result the final one. Loop only.
  void settle(const actors::ValueFuture& attempt) const { promise_.set(attempt.peek()); }

 private:
  runtime::Promise<actors::Value> promise_;
  std::shared_ptr<Ref::Source> source_ = std::make_shared<Ref::Source>();
};

void bind_task_pool(nb::module_& m);

}  // namespace shoal::python
