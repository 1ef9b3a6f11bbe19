// The operations that a rank has submitted and not finished, and the turn of the one thread that drives them.
//
// An operation is in one queue from add() to finish(): that of the collectives, or that of the messages to or from a peer. Only the first
// operation of each queue, its head, advances. Any thread submits and waits. A waiting thread drives until its operation is done or, while
// another one drives, sleeps until something changes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/transport/shm/shm_operation.h"

namespace shoal::runtime {

using OperationPtr = std::shared_ptr<ShmOperation>;

class PendingOperations {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit PendingOperations(int world_size);
  Lock lock() { return Lock(mutex_); }

  // ---- with the lock ----
  std::uint64_t next_sequence(const Lock&) { return ++sequence_; }
  void add_collective(const Lock&, OperationPtr operation);
  void add_send(const Lock&, int to, OperationPtr operation);
  void add_receive(const Lock&, int from, OperationPtr operation);
  bool driven(const Lock&) const { return driving_; }
  bool stopped(const Lock&) const { return stopping_; }
  bool has_background(const Lock&) const { return num_background_ > 0; }
  // Counts the program's threads that wait.
  void count_wait(const Lock&, int change) { program_waits_ += change; }
  // The caller has freed the operation's buffers, or is about to: it advances no more.
  void abandon(const Lock&, ShmOperation& operation);
  // Runs `drive` without the lock, as the only thread that drives.
  template <class F>
  Result<void> take_turn(Lock& lock, F&& drive) {
    driving_ = true;
    lock.unlock();
    Result<void> out = drive();
    lock.lock();
    driving_ = false;
    changed_.notify_all();
    return out;
  }
  // Sleeps until something changes, at most `limit`.
  void wait(Lock& lock, Duration limit) { changed_.wait_for(lock, limit); }

  // ---- without the lock ----
  // Wakes the threads that wait().
  void notify_all() { changed_.notify_all(); }
  // Ends the background thread. Operations that are still pending advance no more.
  void stop();
  bool background_is_over();
  // True if a thread of the program waits, and no other one could help it: then a cycle of waits is a deadlock.
  bool program_is_blocked();

  // ---- the driving thread only ----
  // Updates `heads` if the queues have changed: the heads that are not abandoned.
  void collect_heads(std::vector<OperationPtr>& heads);
  // Removes a complete operation, which is then done.
  void finish(const OperationPtr& operation);

 private:
  void count(const ShmOperation& operation);

  std::mutex mutex_;
  std::condition_variable changed_;

  // Guarded by mutex_.
  std::deque<OperationPtr> collectives_;
  std::vector<std::deque<OperationPtr>> sends_, receives_;  // by peer
  std::uint64_t sequence_ = 0;                              // number of the last collective
  std::uint64_t num_background_ = 0;                        // pending background operations
  std::thread::id submitter_;
  bool several_submitters_ = false;  // if so, a waiting thread does not prove a cycle
  int program_waits_ = 0;
  bool driving_ = false;
  bool stopping_ = false;

  std::atomic<bool> queues_changed_{false};
};

}  // namespace shoal::runtime
