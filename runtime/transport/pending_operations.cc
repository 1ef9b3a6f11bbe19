#include "runtime/transport/pending_operations.h"

namespace shoal::runtime {

PendingOperations::PendingOperations(int world_size)
    : sends_(static_cast<std::size_t>(world_size)), receives_(static_cast<std::size_t>(world_size)) {}

PendingOperations::~PendingOperations() {
  if (getpid() != pid_) (void)changed_.release();
}

void PendingOperations::add_collective(const Lock&, OperationPtr operation) {
  count(*operation);
  collectives_.push_back(std::move(operation));
}

void PendingOperations::add_send(const Lock&, int to, OperationPtr operation) {
  count(*operation);
  sends_[static_cast<std::size_t>(to)].push_back(std::move(operation));
}

void PendingOperations::add_receive(const Lock&, int from, OperationPtr operation) {
  count(*operation);
  receives_[static_cast<std::size_t>(from)].push_back(std::move(operation));
}

void PendingOperations::count(const Operation& operation) {
  const auto self = std::this_thread::get_id();
  if (submitter_ == std::thread::id()) submitter_ = self;
  several_submitters_ |= submitter_ != self;
  if (operation.call().background) ++num_background_;
  queues_changed_.store(true, std::memory_order_release);
}

void PendingOperations::abandon(const Lock&, Operation& operation) {
  operation.abandon();
  queues_changed_.store(true, std::memory_order_release);
}

void PendingOperations::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_->notify_all();
}

bool PendingOperations::background_is_over() {
  const std::lock_guard lock(mutex_);
  return num_background_ == 0 || stopping_;
}

bool PendingOperations::program_is_blocked() {
  const std::lock_guard lock(mutex_);
  return submitter_waits_ > 0 && !several_submitters_;
}

void PendingOperations::collect_heads(std::vector<OperationPtr>& heads) {
  if (!queues_changed_.exchange(false, std::memory_order_acq_rel)) return;
  const std::lock_guard lock(mutex_);
  heads.clear();
  const auto collect = [&](const auto& queue) {
    if (!queue.empty() && !queue.front()->abandoned()) heads.push_back(queue.front());
  };
  collect(collectives_);
  for (const auto* queues : {&sends_, &receives_}) {
    for (const auto& queue : *queues) collect(queue);
  }
}

void PendingOperations::finish(const OperationPtr& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!collectives_.empty() && collectives_.front() == operation) collectives_.pop_front();
    for (auto* queues : {&sends_, &receives_}) {
      for (auto& queue : *queues) {
        if (!queue.empty() && queue.front() == operation) queue.pop_front();
      }
    }
    if (operation->call().background) --num_background_;
    queues_changed_.store(true, std::memory_order_release);
  }
  operation->set_done();
  changed_->notify_all();
}

}  // namespace shoal::runtime
