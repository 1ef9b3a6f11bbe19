#include "fsdp/shard/reductions.h"

#include <bit>

#include <fmt/format.h>

namespace shoal::fsdp {

Result<void> Reductions::publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how) {
  if (!reducer_.has_slot()) {
    SHOAL_OK(peers_.wait([this] { return reducer_.has_slot(); },
                         {fmt::format("a gradient slot (reduce_scatter of unit {}, step {})", units_[unit]->label(), peers_.step_number()),
                          [this] { return reducer_.missing_slot(); }}));
  }
  reducer_.publish(static_cast<std::uint32_t>(unit), gradients, how);
  peers_.notify_all();
  published_any_ = true;
  return {};
}

Result<void> Reductions::wait() {
  SHOAL_OK(peers_.wait([this] { return reducer_.num_pending() == 0; },
                       {fmt::format("the gradients of step {}", peers_.step_number()), [this] { return reducer_.missing_publication(); }}));
  if (reducer_.overtaken_by() < 0) return {};
  return fail(started_over(reducer_.overtaken_by()));
}

Result<void> Reductions::end_pass() {
  if (!published_any_) return {};
  SHOAL_OK(wait());
  published_any_ = false;
  return {};
}

Error Reductions::started_over(int rank) const {
  return invalid_argument(fmt::format("rank {} has started step {} over, rank {} has not", rank, peers_.step_number(), rank_))
      .with_reason("StartedOver")
      .with_hint("one rank's backward raised an exception: call reset_iter_state() on every rank, and repeat the step");
}

Result<double> Reductions::sum_over_ranks(double part) {
  // Two alternating places suffice: a rank contributes to a sum only after it has read the previous one.
  const std::size_t place = num_sums_++ % 2;
  auto& mine = control_.rank(rank_);
  mine.parts[place].store(std::bit_cast<std::uint64_t>(part), std::memory_order_relaxed);
  mine.summed.store(num_sums_, std::memory_order_release);
  peers_.notify_all();
  const auto missing = [this] {
    for (int r = 0; r < world_size_; ++r) {
      if (control_.rank(r).summed.load(std::memory_order_acquire) < num_sums_) return r;
    }
    return -1;
  };
  // The wait also ends when a rank has started over, which may have written parts of later sums.
  SHOAL_OK(peers_.wait([&] { return missing() < 0 || reducer_.ahead() >= 0; },
                       {fmt::format("a sum over ranks (step {})", peers_.step_number()), missing}));
  double out = 0;
  for (int r = 0; r < world_size_; ++r) out += std::bit_cast<double>(control_.rank(r).parts[place].load(std::memory_order_relaxed));
  if (const int rank = reducer_.ahead(); rank >= 0) return fail(started_over(rank));
  return out;
}

void Reductions::start_over() {
  published_any_ = false;
  reducer_.start_over();
  num_sums_ = reducer_.first_number();
  peers_.notify_all();
}

}  // namespace shoal::fsdp
