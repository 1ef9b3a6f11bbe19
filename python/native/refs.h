// What ObjectRef holds, and what is made of it: parts of a result, the news that it is there, a second attempt.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/session.h"
#include "python/native/bindings.h"
#include "python/native/session.h"
#include "runtime/core/fd.h"

namespace shoal::python {

actors::Value::Pieces pieces_of(const nb::bytes& head, const std::vector<ReadBuffer>& buffers);
class Ref;
// The value of these; a large one is copied without the GIL. `refs`: those that were pickled with it.
Result<actors::Value> make_value(actors::Session& session, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
                                 const std::vector<Ref*>& refs, actors::Value::Kind kind = actors::Value::Kind::kResult);
// The value contains these, and keeps what they refer to.
void refer(actors::Value& value, const std::vector<Ref*>& refs);
// (head, [buffer, ...]): the head as bytes when small, everything else as views, for reading, of the memory it lies in. All that come of
// one value share it, but with tensors: those have one that is theirs alone, as they cannot be kept from writing.
nb::tuple to_python(const actors::Value& given);

// How many of some refs have become ready, and whether one has failed; counted on the loop.
struct Tally {
  std::size_t of = 0;
  std::size_t ready = 0;
  bool failed = false;
};

// Parts of a call's results get memories of their own before they are passed on: here, where that may wait for room, and not on the loop.
void stand_alone(actors::Session& session, const std::vector<Ref*>& refs);

// A future value.
class Ref {
 public:
  // Of one that follows from a call's answer: what that is, and whether somebody has given it up. The loop's.
  struct Source {
    actors::ValueFuture call;
    bool cancelled = false;
    std::uint64_t task = 0;  // of a call that is made again: its number, once it was made
    std::shared_ptr<std::int32_t> attempts = std::make_shared<std::int32_t>(0);  // that were: also those of ActorCalls
  };
  explicit Ref(actors::ValueFuture future, std::shared_ptr<Source> source = {}) : future_(std::move(future)), source_(std::move(source)) {}
  // One that is an object of the node's; `hold` keeps it there.
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
  // Which call of this process it is of; 0: of none.
  std::uint64_t task() const { return task_ == 0 && source_ ? source_->task : task_; }
  Ref&& of_task(std::uint64_t task) && {
    task_ = task;
    return std::move(*this);
  }
  void follows(const Ref& other) { task_ = other.task(); }
  // What it follows from is to be cancelled for it.
  actors::Session::ToCancel to_cancel() const {
    if (!source_) return {[future = future_] { return future; }, [] {}};
    return {[source = source_] { return source->call; }, [source = source_] { source->cancelled = true; }};
  }
  bool ready() const { return future_.ready(); }
  // A tally counts it, once it is ready, until it leaves: of many that wait for one after the other the future keeps none. Loop only.
  void follow(const std::shared_ptr<Tally>& tally) const;
  void leave(const std::shared_ptr<Tally>& tally) const;
  bool failed() const { return !future_.peek() || future_.peek()->raised(); }
  // What those who look at this process call its value; `fresh` from now on, if it has no name yet. Any thread.
  std::string known_as(const std::string& fresh) const;
  // (raised, head, buffers); raises when it is an Error.
  nb::tuple value() const;

 private:
  using Followers = std::vector<std::shared_ptr<Tally>>;
  actors::ValueFuture future_;
  std::shared_ptr<Source> source_;
  mutable std::shared_ptr<Followers> followers_;  // once there was one; the loop's
  actors::ObjectKey object_;                      // once it was published
  std::shared_ptr<const void> hold_;
  std::uint64_t task_ = 0;
};

// Those of a call's arguments, each of which is held until it is there, whoever drops the reference. With the GIL.
std::vector<actors::ValueFuture> futures_of(actors::Session& session, const std::vector<Ref*>& refs);

// Tells Python which refs have become ready, by the numbers they were given: `fd` can be read from once there are some.
//
// A handler of the loop only notes the number. It never takes the GIL: a thread that holds the GIL may be waiting for the loop. Any thread
// may call any member.
class Readiness {
 public:
  Readiness();
  int fd() const { return noted_->event.get(); }
  // Numbers are noted once each, in the order in which their refs become ready.
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

// What a call of an actor's method comes to that may be made more than once: the result of the attempt that is not worth another.
class Attempts {
 public:
  Ref ref() const { return Ref(promise_.future(), source_); }
  // Calls `actor`. Its result is the result, unless the process died (or, with `judge_raised`, the method raised): then `number` is
  // noted, and whoever takes it calls start again, or settle. One that was cancelled makes no attempt.
  Ref start(actors::Session& session, actors::Call call, std::vector<actors::ValueFuture> deps, bool judge_raised, Readiness readiness,
            std::uint64_t number) const;
  // The result is this attempt's, after all. Loop only.
  void settle(const actors::ValueFuture& attempt) const { promise_.set(attempt.peek()); }

 private:
  runtime::Promise<actors::Value> promise_;
  std::shared_ptr<Ref::Source> source_ = std::make_shared<Ref::Source>();
};

// A pool of remote functions (actors/session/task_pool.h), of a session that outlives every use of it: `number` is noted when take_wants
// has something to say.
struct PyTaskPool {
  PySession* session = nullptr;
  std::shared_ptr<actors::TaskPool> pool;
};

}  // namespace shoal::python
