#include "runtime/transport/pending_operations.h"

namespace shoal::runtime {

namespace {

// How often a thread that waits for its turn to drive checks for signals.
constexpr auto kTurn = std::chrono::milliseconds(50);
// How often the lane checks for work when it has none.
constexpr auto kIdle = std::chrono::seconds(1);

}  // namespace

PendingOperations::PendingOperations(int world_size, OperationDriver& driver, const std::function<bool()>& interrupted)
    : driver_(driver),
      interrupted_(interrupted),
      sends_(static_cast<std::size_t>(world_size)),
      receives_(static_cast<std::size_t>(world_size)) {}

PendingOperations::~PendingOperations() {
  if (!forked()) return;
  (void)changed_.release();
  (void)lane_.release();
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

void PendingOperations::submitted(Lock lock, const Operation& operation) {
  if (operation.call().background && !lane_) lane_ = std::make_unique<SideThread>([this] { run_lane(); });
  const bool wake = driving_;
  lock.unlock();
  changed_->notify_all();
  if (wake) driver_.wake();
}

void PendingOperations::await_turn(Lock& lock) { changed_->wait_for(lock, kTurn); }

Result<void> PendingOperations::wait(const OperationPtr& operation) {
  if (operation->ended()) return {};
  if (forked()) return fail(forked_child_error());
  auto lock = this->lock();
  count_wait(lock, 1);
  Result<void> out;
  bool drove = false;
  while (out && !operation->ended() && !driver_.over(drove)) {
    if (driving_ || driver_.wanted()) {
      await_turn(lock);
      lock.unlock();
      if (interrupted_ && interrupted_()) out = fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
      lock.lock();
    } else {
      out = take_turn(lock, [&] { return driver_.drive(operation); });
      drove = true;
    }
  }
  count_wait(lock, -1);
  if (!out || operation->ended()) return out;
  abandon(lock, *operation);
  return fail(driver_.failure_in(operation->what()));
}

bool PendingOperations::settle(const OperationPtr& operation) {
  const auto ended = wait(operation);
  return ended || ended.error().reason() != "Interrupted";
}

void PendingOperations::run_lane() {
  auto lock = this->lock();
  while (!stopping_) {
    const bool work = num_background_ > 0;
    if (!work || driving_ || driver_.wanted() || driver_.has_failed()) {
      changed_->wait_for(lock, work ? Duration(kTurn) : Duration(kIdle));
      continue;
    }
    (void)take_turn(lock, [&] { return driver_.drive(nullptr); });
  }
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
  driver_.wake();
  lane_.reset();
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
  operation->set_ended();
  changed_->notify_all();
}

}  // namespace shoal::runtime
