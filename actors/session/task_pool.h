// Remote functions: what waits, which worker runs what, and what is run again. One pool per kind of worker (resources, place,
// environment). Loop thread only.
//
// A task waits here until the references among its arguments are there and a worker is free, so that nothing queues behind a long one while
// others are idle. Of functions that take less than `pipelined` a worker gets several at once: as many as it runs in that time, by what
// calls of the same functions took; behind one of which nothing is known, none. Workers are made and ended by the owner, who is told when
// there is something to do (take_wants). Where tasks are to be spread, nodes have their turns, and one whose worker is just being made is
// waited for.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/actor_calls.h"

namespace shoal::actors {

class TaskPool {
 public:
  struct Task {
    std::string name;            // of the function, for errors
    std::string method = "run";  // of its worker
    std::uint64_t function = 0;  // which one it is
    Value args;
    std::vector<ValueFuture> deps;
    std::int32_t retries = 0;     // after deaths of its worker; below 0: any number
    bool judge_raised = false;    // what it raises may be worth another attempt
    std::uint32_t max_calls = 0;  // of the function in one worker; 0: any number
    CallKey parent;               // the call of this process in which it was made
  };
  struct Judgement {
    std::uint64_t id = 0;
    std::uint64_t function = 0;
    ValueFuture raised;
  };
  struct Wants {
    std::size_t workers = 0;         // more of them, for what waits
    bool starting = false;           // some are not made yet
    bool alone = false;              // there is none at all that has its CPUs, or is to have them
    bool empty = false;              // there is none at all
    std::vector<ActorId> ended;      // to be retired: idle for long, used up, or wanted back
    std::vector<ActorId> condemned;  // to be killed at once: what they run was cancelled by force
    std::vector<Judgement> raised;   // judged() is to be called for each
  };
  struct Options {
    std::size_t max_workers = 4096;
    runtime::Duration pipelined = std::chrono::milliseconds(2);
    std::size_t max_in_flight = 64;                                // of one worker
    runtime::Duration turn_kept = std::chrono::seconds(5);         // for a node whose worker is being made
    runtime::Duration retry_delay = {};                            // before another attempt of a task whose worker died
    runtime::Duration lend_after = std::chrono::milliseconds(10);  // what a worker holds that has nothing to do
    // Before it is asked again for CPUs that somebody else had, at first, and each time twice as long. After the longest pause
    // another worker is wanted, which waits for its turn.
    runtime::Duration resume_pause = std::chrono::milliseconds(5), longest_resume_pause = std::chrono::milliseconds(80);
  };
  using CallActor = std::function<ValueFuture(Call, std::vector<ValueFuture>)>;
  using CancelCall = std::function<void(const ValueFuture&, CancelHow)>;
  // The CPUs of a worker that has nothing to do: others may have them; and whether it has them again, which is answered on the loop.
  struct Lending {
    std::function<void(ActorId)> lend;
    std::function<void(ActorId, std::function<void(bool)>)> resume;
  };

  // `wanted` is called when take_wants has something new to say, once until then.
  TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options);
  ~TaskPool() { close(); }
  // What is not done fails as Cancelled, and so does what comes after.
  void close();

  // What was done is noted there, as tasks of that process, all of whose pools count with `next`. Both outlive its last use.
  void note_in(CallBook& book, WorkerId self, std::uint64_t& next) {
    book_ = &book;
    self_ = self;
    next_task_ = &next;
  }
  // From now on tasks are spread over nodes; `node` tells a worker's.
  void spread(std::function<NodeId(ActorId)> node) { node_ = std::move(node); }
  // From now on the CPUs of idle workers are lent.
  void lend(Lending lending) { lending_ = std::move(lending); }
  // Those that no worker has, until there are so many rows; returns how many were more.
  std::uint64_t tell(std::vector<ToldTask>& out, std::size_t limit) const;
  // Whether there are such; what a worker has is a call.
  bool any_open() const { return !waiting_.empty() || !blocked_.empty() || !judging_.empty() || !delayed_.empty(); }
  // The same tasks, counted.
  void count(CallBook::Counts& counts) const;

  // What the function returned or raised; Unavailable/WorkerCrashed when its worker died each time.
  ValueFuture submit(Task task);
  // Of the task that is submitted next: Call::task of its attempts has it. 0: they are not counted.
  std::uint64_t next_number() const { return next_task_ == nullptr ? 0 : *next_task_; }
  // An actor whose method `run` runs a task. `made` fails when it will never be one: then what waits first is charged with that. `node`:
  // where it is to be, if that is known (of a pool that spreads).
  void add(ActorId worker, const ValueFuture& made, NodeId node = {});
  // Of a pool that spreads: those of these nodes that are to get a worker, in the order of their turns. They have none, and are as many as
  // tasks wait for which none is being made, and one more.
  std::vector<NodeId> next_nodes(std::vector<NodeId> roomy) const;
  // Somebody else waits for what they hold. Of workers that were made longer than `lease` ago those without work end, and where there are
  // none the oldest gets no more of it.
  void give_back(runtime::Duration lease);
  // The function that waits for a worker first; "" when none does.
  std::string first_waiting() const { return waiting_.empty() ? "" : waiting_.front()->task.name; }
  // Workers that were idle for that long end, too.
  Wants take_wants(runtime::Duration idle);
  void judged(std::uint64_t id, bool again);
  // One that no worker has fails as Cancelled/TaskCancelled, one that a worker has is interrupted there; with `force` the worker ends that
  // runs it. No attempt follows. Nothing for what is not this pool's, or is done.
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // No worker can be had: what waits for one fails.
  void fail_waiting(const Error& cause);

 private:
  struct Item {
    Task task;
    runtime::Promise<Value> promise;
    std::size_t missing = 0;  // references that are not there yet
    double expected = 0;      // seconds; once it is sent
    runtime::TimePoint sent;
    ValueFuture attempt;  // once it is sent
    bool cancelled = false;
    bool refused = false;  // the worker was dead before it was sent there
    std::uint64_t number = 0;
    std::int32_t attempts = 0;  // that began, or are with a worker
    ActorId worker;             // that has it
  };
  using ItemPtr = std::shared_ptr<Item>;
  // kAsked: it is being asked whether they are to be had again; kRefused: others had them then.
  enum class Cpus { kHeld, kLent, kAsked, kRefused };
  struct Worker {
    bool made = false;
    Cpus cpus = Cpus::kHeld;
    runtime::TimePoint ask_after;  // once more, when others had them
    runtime::Duration pause = {};  // until then
    bool retired = false;          // gets no more
    bool dead = false;
    std::deque<ItemPtr> in_flight;
    double expected = 0;    // seconds that they take together
    std::size_t again = 0;  // of those that it lost, already waiting again
    runtime::TimePoint made_at, idle_since, last_done;
    std::map<std::uint64_t, std::uint32_t> calls;  // by function, of those with a limit
    NodeId node;                                   // of a pool that spreads
  };
  using Workers = std::map<ActorId, Worker>;

  void dispatch();
  void dispatch_now();
  Workers::iterator choose(double takes);
  // Others have its CPUs, and that for long.
  bool is_out(const Worker& worker) const { return worker.cpus != Cpus::kHeld && worker.pause >= options_.longest_resume_pause; }
  void resume_later();
  void resume(ActorId id, Worker& worker);
  void resumed(ActorId id, bool has);
  void lend_later(runtime::Duration delay);
  void lend_idle();
  bool is_better(const Worker& one, const Worker& other) const;
  std::uint64_t turn_of(NodeId node) const;
  bool has_another() const;
  std::size_t num_starting() const;  // that may still be made
  void pause();                      // before more workers are wanted
  // Whether an earlier turn than this worker's is that of a node whose own is being made.
  bool keeps_turn(const Worker& chosen);
  double expected(std::uint64_t function) const;
  void start(ActorId id, Worker& worker, const ItemPtr& item);
  void done(ActorId id, const ItemPtr& item, const Result<Value>& result);
  void lost(Worker& worker, const ItemPtr& item, const Error& how);
  void crashed(const ItemPtr& item, const Error& how);
  // The end of an attempt, or of one that was not sent.
  void note(const Item& item, std::string_view failure, runtime::TimePoint now);
  // It waits for another attempt; what was with a worker that had not begun it, for the same one.
  static void take_back(Item& item, bool began);
  // It waits for a worker once options_.retry_delay is over.
  void delay(const ItemPtr& item);
  void end_delays();
  // What it came to is noted and told.
  void finish(const ItemPtr& item, const Result<Value>& result);
  bool cancel_unsent(const ValueFuture& result);
  void cancel_sent(ActorId id, Worker& worker, const ItemPtr& item, CancelHow how);
  void want();

  runtime::Clock& clock_;
  const CallActor call_;
  const CancelCall cancel_;
  const std::function<void()> wanted_;
  const Options options_;
  Workers workers_;
  std::function<NodeId(ActorId)> node_;    // of a pool that spreads
  std::map<NodeId, std::uint64_t> turns_;  // when each was given something, last
  std::uint64_t next_turn_ = 1;
  runtime::TimePoint wants_after_;  // one could not be made, and others could
  runtime::Duration pause_ = {};
  runtime::Timer turn_over_;
  Lending lending_;
  runtime::Timer lend_timer_, resume_timer_;
  bool lends_later_ = false;
  std::vector<ActorId> condemned_;  // to be killed, not told of yet
  std::deque<ItemPtr> waiting_;
  std::map<std::uint64_t, ItemPtr> blocked_;                    // by number: some of their references are not there yet
  std::deque<std::pair<runtime::TimePoint, ItemPtr>> delayed_;  // until when, in this order
  runtime::Timer delay_over_;
  std::map<std::uint64_t, std::pair<ItemPtr, ValueFuture>> judging_;
  std::vector<std::uint64_t> unjudged_;      // of them, not told of yet
  std::map<std::uint64_t, double> seconds_;  // that a call of a function takes
  std::uint64_t next_ = 1;
  CallBook* book_ = nullptr;
  WorkerId self_;
  std::uint64_t* next_task_ = nullptr;
  bool closed_ = false, dispatching_ = false, again_ = false, told_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
