// The operations that a rank has submitted and that have not finished. One thread at a time takes the turn to drive them. How to drive them
// is up to the communicator (OperationDriver).
//
// An operation is in a queue from its submission to finish(). One queue has the collectives; each other rank has a queue of sends and one
// of receives. Only the first operation of each queue, its head, advances. Any thread submits and waits. A waiting thread drives operations
// until its own is done. While another thread drives, it sleeps until something changes. The first background operation starts a thread,
// the lane, which drives while background operations are pending.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/owner_process.h"
#include "runtime/loop/side_thread.h"
#include "runtime/transport/operation.h"

namespace shoal::runtime {

// The part of PendingOperations that differs between communicators.
class OperationDriver {
 public:
  // Advances operations until `until` is done (null: until no background operation is left), or the group has failed. Returns
  // Cancelled/Interrupted if a signal ended it. Called by the thread that has the turn.
  virtual Result<void> drive(const OperationPtr& until) = 0;
  // Makes the thread in drive() check whether it can return. Any thread.
  virtual void wake() = 0;
  // True while a thread wants the turn for something else: drive() is not called then.
  virtual bool wanted() const { return false; }
  virtual bool has_failed() const = 0;
  // True if drive() can complete no further operation. `drove`: this wait has called it already.
  virtual bool over(bool drove) const = 0;
  // The group's failure, as the error of the call `what`.
  virtual Error failure_in(const std::string& what) const = 0;

 protected:
  ~OperationDriver() = default;
};

class PendingOperations {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // A wait polls `interrupted`, unless that is empty. Both `driver` and `interrupted` outlive this object.
  PendingOperations(int world_size, OperationDriver& driver, const std::function<bool()>& interrupted);
  // In a forked child, leaves the condition variable and the lane as they are: only threads of the parent use them.
  ~PendingOperations();
  PendingOperations(const PendingOperations&) = delete;
  PendingOperations& operator=(const PendingOperations&) = delete;
  Lock lock() { return Lock(mutex_); }
  // True in a child that was forked from the rank's process.
  bool forked() const { return process_.forked(); }

  // ---- to be called with the lock ----
  std::uint64_t next_sequence(const Lock&) { return ++sequence_; }
  void add_collective(const Lock&, OperationPtr operation);
  void add_send(const Lock&, int to, OperationPtr operation);
  void add_receive(const Lock&, int from, OperationPtr operation);
  bool driven(const Lock&) const { return driving_; }
  // To be called once the operation is added: makes a thread drive it.
  void submitted(Lock lock, const Operation& operation);
  // Runs `drive` without the lock. Until it returns, no other thread drives.
  template <class F>
  Result<void> take_turn(Lock& lock, F&& drive) {
    driving_ = true;
    lock.unlock();
    Result<void> out = drive();
    lock.lock();
    driving_ = false;
    changed_->notify_all();
    return out;
  }
  // For a thread that waits for its turn: sleeps until another thread gives it up or submits, at most for 50 ms.
  void await_turn(Lock& lock);

  // ---- to be called without the lock ----

  // Waits until the operation is done. After a failure of the group the operation uses its buffers no more. Returns Cancelled/Interrupted
  // if a signal ended the wait.
  Result<void> wait(const OperationPtr& operation);
  // To be called after the group's failure: makes the operation use its buffers no more. Returns false if a signal interrupted this.
  bool settle(const OperationPtr& operation);
  // Ends the lane. Operations that are still pending make no more progress.
  void stop();
  bool background_is_over();
  // True if the thread that makes the calls waits, and no other thread makes calls that could end the wait. Then a cycle of waits is a
  // deadlock.
  bool program_is_blocked();

  // ---- to be called by the driving thread only ----

  // If the queues have changed, sets `heads` to the first operations of all queues, except for those that are abandoned.
  void collect_heads(std::vector<OperationPtr>& heads);
  // Removes an operation that is complete, and marks it as done.
  void finish(const OperationPtr& operation);

 private:
  void count(const Operation& operation);
  // Adds to the number of this thread's waits. Waits of a thread that submits nothing, such as one that completes futures, do not count.
  void count_wait(const Lock&, int change) {
    if (std::this_thread::get_id() == submitter_) submitter_waits_ += change;
  }
  // Stops the progress of an operation whose caller has freed its buffers or is about to.
  void abandon(const Lock&, Operation& operation);
  void run_lane();

  const OwnerProcess process_;
  OperationDriver& driver_;
  const std::function<bool()>& interrupted_;
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();

  // Guarded by mutex_.
  std::deque<OperationPtr> collectives_;
  std::vector<std::deque<OperationPtr>> sends_, receives_;  // by the other rank
  std::uint64_t sequence_ = 0;                              // number of the last collective that was submitted
  std::uint64_t num_background_ = 0;                        // number of pending operations that are in the background
  std::thread::id submitter_;
  // True once more than one thread submits. Then program_is_blocked() is false: while one waits, another may make the call that ends the
  // wait.
  bool several_submitters_ = false;
  int submitter_waits_ = 0;
  bool driving_ = false;
  bool stopping_ = false;
  std::unique_ptr<SideThread> lane_;

  std::atomic<bool> queues_changed_{false};
};

}  // namespace shoal::runtime
