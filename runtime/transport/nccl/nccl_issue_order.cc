#include "runtime/transport/nccl/nccl_issue_order.h"

#include <chrono>
#include <map>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr auto kTurnSignals = std::chrono::milliseconds(50);  // between two looks at signals and the group's failure

}  // namespace

std::shared_ptr<NcclIssueOrder> NcclIssueOrder::of(const Device& device) {
  static std::mutex mutex;
  static auto* const orders = new std::map<int, std::shared_ptr<NcclIssueOrder>>;  // never destroyed: threads may outlive main
  const std::lock_guard lock(mutex);
  auto& order = (*orders)[device.ordinal()];
  if (order == nullptr) order = std::make_shared<NcclIssueOrder>();
  return order;
}

Result<NcclIssueOrder::Turn> NcclIssueOrder::take(const Limits& limits) {
  const auto began = limits.clock->now();
  std::unique_lock lock(mutex_);
  while (taken_) {
    if (owner_ == std::this_thread::get_id())
      return fail(invalid_argument("a signal handler calls a collective while this thread begins another").with_reason("Reentered"));
    free_.wait_for(lock, kTurnSignals);
    if (!taken_) break;
    lock.unlock();
    if (auto cause = limits.failed ? limits.failed() : std::nullopt) return fail(*std::move(cause));
    if (limits.interrupted && limits.interrupted()) return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
    const auto waited = limits.clock->now() - began;
    if (waited > limits.timeout) {
      return fail(deadline_exceeded(fmt::format("another thread has put work on the device for {} ms",
                                                std::chrono::duration_cast<std::chrono::milliseconds>(waited).count()))
                      .with_reason("Late")
                      .with_hint("an operation of another group waits for its ranks; each rank makes its calls in the same order"));
    }
    lock.lock();
  }
  taken_ = true;
  owner_ = std::this_thread::get_id();
  return Turn(*this);
}

std::optional<NcclIssueOrder::Turn> NcclIssueOrder::try_take() {
  const std::lock_guard lock(mutex_);
  if (taken_) return std::nullopt;
  taken_ = true;
  owner_ = std::this_thread::get_id();
  return std::optional<Turn>(std::in_place, *this);
}

void NcclIssueOrder::give_back() {
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    owner_ = {};
  }
  free_.notify_one();
}

}  // namespace shoal::runtime
