// Remote functions: waiting tasks, their workers and their retries. One pool per kind of worker (resources, place, environment). Loop
// thread only.
//
// A task waits here until the references among its arguments are ready and a worker is free, so none queues behind a long one needlessly.
// A worker gets several tasks of short functions at once: as many as it runs in `pipelined`, by the time of past calls. Behind a function
// of unknown length it gets none. The owner makes and ends workers; it is notified when there is something to do (take_wants). Spread
// tasks go to nodes in turn, and a node whose worker is being made is waited for.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/call_book.h"

namespace shoal::actors {

class TaskPool {
 public:
  struct Task {
    std::string name;            // the function's, for errors
    std::string method = "run";  // the worker's
    std::uint64_t function = 0;  // identifies the function
    Value args;
    std::vector<ValueFuture> deps;
    std::int32_t retries = 0;     // after deaths of its worker; below 0: unlimited
    bool judge_raised = false;    // a raised exception may allow another attempt
    std::uint32_t max_calls = 0;  // calls of the function per worker; 0: unlimited
    CallKey parent;               // the call of this process in which it was made
  };
  struct Judgement {
    std::uint64_t id = 0;
    std::uint64_t function = 0;
    ValueFuture raised;
  };
  struct Wants {
    std::size_t workers = 0;         // additional ones, for waiting tasks
    bool starting = false;           // some are not made yet
    bool alone = false;              // no worker has its CPUs, or is about to
    bool empty = false;              // no workers at all
    std::vector<ActorId> ended;      // to be retired: idle for long, used up, or wanted by others
    std::vector<ActorId> condemned;  // to be killed at once: their tasks were cancelled by force
    std::vector<Judgement> raised;   // each needs a call of judged()
  };
  struct Options {
    std::size_t max_workers = 4096;
    runtime::Duration pipelined = std::chrono::milliseconds(2);
    std::size_t max_in_flight = 64;                                // per worker
    runtime::Duration turn_kept = std::chrono::seconds(5);         // for a node whose worker is being made
    runtime::Duration retry_delay = {};                            // before another attempt after a worker's death
    runtime::Duration lend_after = std::chrono::milliseconds(10);  // idle time after which a worker's CPUs are lent
    // Before a worker's lent CPUs are requested again, at first; doubled each time. After the longest pause another worker is wanted,
    // which waits for its turn.
    runtime::Duration resume_pause = std::chrono::milliseconds(5), longest_resume_pause = std::chrono::milliseconds(80);
  };
  using CallActor = std::function<ValueFuture(Call, std::vector<ValueFuture>)>;
  using CancelCall = std::function<void(const ValueFuture&, CancelHow)>;
  // Lends an idle worker's CPUs to others, and requests them back; the answer comes on the loop.
  struct Lending {
    std::function<void(ActorId)> lend;
    std::function<void(ActorId, std::function<void(bool)>)> resume;
  };

  // `wanted` is called when take_wants has something new, once until take_wants is called.
  TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options);
  ~TaskPool() { close(); }
  // Open and later tasks fail as Cancelled.
  void close();

  // Notes ended tasks in `book` as those of process `self`, whose pools share the counter `next`. Both outlive the pool's use of them.
  void note_in(CallBook& book, WorkerId self, std::uint64_t& next) {
    book_ = &book;
    self_ = self;
    next_task_ = &next;
  }
  // Tasks are spread over nodes from now on; `node` returns a worker's.
  void spread(std::function<NodeId(ActorId)> node) { node_ = std::move(node); }
  // The CPUs of idle workers are lent from now on.
  void lend(Lending lending) { lending_ = std::move(lending); }
  // Appends tasks without a worker, up to `limit` rows in all; returns the number omitted.
  std::uint64_t tell(std::vector<TaskReport>& out, std::size_t limit) const;
  // True if there are tasks without a worker; the others are calls.
  bool any_open() const { return !waiting_.empty() || !blocked_.empty() || !judging_.empty() || !delayed_.empty(); }
  // The same tasks, counted.
  void count(CallBook::Counts& counts) const;

  // The function's result or exception; Unavailable/WorkerCrashed when its worker died at each attempt.
  ValueFuture submit(Task task);
  // The task number of the next submitted task; 0: tasks are not counted.
  std::uint64_t next_number() const { return next_task_ == nullptr ? 0 : *next_task_; }
  // Adds an actor whose method `run` runs a task. If `made` fails, the first waiting task loses an attempt. `node`: its node, if known
  // (when spreading).
  void add(ActorId worker, const ValueFuture& made, NodeId node = {});
  // When spreading: the nodes among these that should get a worker, in the order of their turns. They have none, and suffice for the
  // waiting tasks without a starting worker, plus one.
  std::vector<NodeId> next_nodes(std::vector<NodeId> roomy) const;
  // Others wait for the workers' resources. Idle workers older than `lease` end; if there are none, the oldest gets no more tasks.
  void give_back(runtime::Duration lease);
  // The function of the first waiting task; "" when none waits.
  std::string first_waiting() const { return waiting_.empty() ? "" : waiting_.front()->task.name; }
  // Also ends workers that were idle for `idle`.
  Wants take_wants(runtime::Duration idle);
  void judged(std::uint64_t id, bool again);
  // A task without a worker fails as Cancelled/TaskCancelled; one with a worker is interrupted there. `force` ends the worker that runs
  // it. No retry follows. No effect on other pools' and finished tasks.
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // No worker can be made: waiting tasks fail.
  void fail_waiting(const Error& cause);

 private:
  struct Item {
    Task task;
    runtime::Promise<Value> promise;
    std::size_t missing = 0;  // references that are not ready
    double expected = 0;      // seconds; once it is sent
    runtime::TimePoint sent;
    ValueFuture attempt;  // once it is sent
    bool cancelled = false;
    bool refused = false;  // the worker was dead before it was sent there
    std::uint64_t number = 0;
    std::int32_t attempts = 0;  // begun, or at a worker
    ActorId worker;             // the worker that has it
  };
  using ItemPtr = std::shared_ptr<Item>;
  // kAsked: resume() is unanswered; kRefused: others had the CPUs.
  enum class Cpus { kHeld, kLent, kAsked, kRefused };
  struct Worker {
    bool made = false;
    Cpus cpus = Cpus::kHeld;
    runtime::TimePoint ask_after;  // for the next resume() after kRefused
    runtime::Duration pause = {};  // length of that wait
    bool retired = false;          // gets no more tasks
    bool dead = false;
    std::deque<ItemPtr> in_flight;
    double expected = 0;    // seconds for all of them
    std::size_t again = 0;  // lost tasks that wait again
    runtime::TimePoint made_at, idle_since, last_done;
    std::map<std::uint64_t, std::uint32_t> calls;  // by function, for those with a limit
    NodeId node;                                   // when spreading
  };
  using Workers = std::map<ActorId, Worker>;

  void dispatch();
  void dispatch_now();
  Workers::iterator choose(double takes);
  // Others have had its CPUs for long.
  bool is_out(const Worker& worker) const { return worker.cpus != Cpus::kHeld && worker.pause >= options_.longest_resume_pause; }
  void resume_later();
  void resume(ActorId id, Worker& worker);
  void resumed(ActorId id, bool has);
  void lend_later(runtime::Duration delay);
  void lend_idle();
  bool is_better(const Worker& one, const Worker& other) const;
  std::uint64_t turn_of(NodeId node) const;
  bool has_another() const;
  std::size_t num_starting() const;  // without stuck ones
  void pause();                      // before more workers are wanted
  // True if a node with an earlier turn has a worker being made.
  bool keeps_turn(const Worker& chosen);
  double expected(std::uint64_t function) const;
  void start(ActorId id, Worker& worker, const ItemPtr& item);
  void done(ActorId id, const ItemPtr& item, const Result<Value>& result);
  void lost(Worker& worker, const ItemPtr& item, const Error& how);
  void crashed(const ItemPtr& item, const Error& how);
  // Notes the end of an attempt, or of a task that was not sent.
  void note(const Item& item, std::string_view failure, runtime::TimePoint now);
  // Prepares a task for another attempt, or for the same one if it had not begun.
  static void take_back(Item& item, bool began);
  // Queues a task again after options_.retry_delay.
  void delay(const ItemPtr& item);
  void end_delays();
  // Notes the result and sets the promise.
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
  std::function<NodeId(ActorId)> node_;    // when spreading
  std::map<NodeId, std::uint64_t> turns_;  // last turn of each node
  std::uint64_t next_turn_ = 1;
  runtime::TimePoint wants_after_;  // a worker could not be made, while others exist
  runtime::Duration pause_ = {};
  runtime::Timer turn_over_;
  Lending lending_;
  runtime::Timer lend_timer_, resume_timer_;
  bool lends_later_ = false;
  std::vector<ActorId> condemned_;  // to be killed, not reported yet
  std::deque<ItemPtr> waiting_;
  std::map<std::uint64_t, ItemPtr> blocked_;                    // by number: some of their references are not ready
  std::deque<std::pair<runtime::TimePoint, ItemPtr>> delayed_;  // by the end of the delay
  runtime::Timer delay_over_;
  std::map<std::uint64_t, std::pair<ItemPtr, ValueFuture>> judging_;
  std::vector<std::uint64_t> unjudged_;      // entries not reported yet
  std::map<std::uint64_t, double> seconds_;  // mean duration of a function's calls
  std::uint64_t next_ = 1;
  CallBook* book_ = nullptr;
  WorkerId self_;
  std::uint64_t* next_task_ = nullptr;
  bool closed_ = false, dispatching_ = false, again_ = false, reported_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
