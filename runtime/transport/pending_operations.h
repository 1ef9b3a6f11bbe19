// The operations that a rank has submitted and that have not finished. One thread at a time takes the turn to drive them.
//
// An operation is in a queue from its submission to finish(). One queue has the collectives; each other rank has a queue of sends and one
// of receives. Only the first operation of each queue, its head, advances. Any thread submits and waits. A waiting thread drives operations
// until its own is done. While another thread drives, it sleeps until something changes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/transport/operation.h"

namespace shoal::runtime {

class PendingOperations {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit PendingOperations(int world_size);
  // In a forked child, leaves the condition variable as it is: threads that exist in the parent only may wait for it.
  ~PendingOperations();
  PendingOperations(const PendingOperations&) = delete;
  PendingOperations& operator=(const PendingOperations&) = delete;
  Lock lock() { return Lock(mutex_); }

  // ---- to be called with the lock ----
  std::uint64_t next_sequence(const Lock&) { return ++sequence_; }
  void add_collective(const Lock&, OperationPtr operation);
  void add_send(const Lock&, int to, OperationPtr operation);
  void add_receive(const Lock&, int from, OperationPtr operation);
  bool driven(const Lock&) const { return driving_; }
  bool stopped(const Lock&) const { return stopping_; }
  bool has_background(const Lock&) const { return num_background_ > 0; }
  // Adds to the number of this thread's waits. Waits of a thread that submits nothing, such as one that completes futures, do not count.
  void count_wait(const Lock&, int change) {
    if (std::this_thread::get_id() == submitter_) submitter_waits_ += change;
  }
  // Stops the progress of an operation whose caller has freed its buffers or is about to.
  void abandon(const Lock&, Operation& operation);
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
  // Sleeps until another thread calls notify_all(), at most for `limit`.
  void wait(Lock& lock, Duration limit) { changed_->wait_for(lock, limit); }

  // ---- to be called without the lock ----

  // Wakes the threads that sleep in wait().
  void notify_all() { changed_->notify_all(); }
  // Ends the background thread (ShmCommunicator::run_lane). Operations that are still pending make no more progress.
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

  const pid_t pid_ = getpid();
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();

  // Guarded by mutex_.
  std::deque<OperationPtr> collectives_;
  std::vector<std::deque<OperationPtr>> sends_, receives_;  // by the other rank
  std::uint64_t sequence_ = 0;                              // number of the last collective that was submitted
  std::uint64_t num_background_ = 0;                        // number of pending operations that are in the background
  std::thread::id submitter_;
  // Several threads have submitted operations. So while one waits, another may still make the call that ends the wait.
  bool several_submitters_ = false;
  int submitter_waits_ = 0;
  bool driving_ = false;
  bool stopping_ = false;

  std::atomic<bool> queues_changed_{false};
};

}  // namespace shoal::runtime
