#include "fsdp/shard/reducer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "fsdp/kernels/kernels.h"
#include "runtime/core/check.h"

namespace shoal::fsdp {

namespace {

constexpr std::size_t kPage = 4096;
constexpr int kAttemptShift = 40;  // of a sequence: 2^24 attempts of 2^40 publications

std::uint64_t attempt_of(std::uint64_t sequence) { return sequence >> kAttemptShift; }

std::size_t stride_of(const std::vector<const Layout*>& layouts) {
  std::size_t out = 0;
  for (const auto* l : layouts) out = std::max(out, l->bytes());
  return (out + kPage - 1) / kPage * kPage;
}

}  // namespace

std::size_t Reducer::slot_bytes(const std::vector<const Layout*>& layouts, int world_size) {
  return std::max(kPage, stride_of(layouts) * static_cast<std::size_t>(world_size) * Control::kSlots);
}

Reducer::Reducer(Control& control, int rank, int world_size, std::vector<const Layout*> layouts, std::byte* slots)
    : control_(control), rank_(rank), world_size_(world_size), layouts_(std::move(layouts)), slots_(slots), stride_(stride_of(layouts_)) {}

int Reducer::missing_slot() const {
  const std::uint64_t needed = next_ - first_ < Control::kSlots ? left_off_ : next_ - Control::kSlots + 1;
  // This rank comes last: where it lags itself, it does so because of a rank that has not published.
  for (int i = 1; i <= world_size_; ++i) {
    const int r = (rank_ + i) % world_size_;
    if (control_.rank(r).consumed.load(std::memory_order_acquire) < needed) return r;
  }
  return -1;
}

bool Reducer::has_slot() const { return missing_slot() < 0; }

bool Reducer::all_published(std::uint64_t sequence) const {
  for (int r = 0; r < world_size_; ++r) {
    const std::uint64_t published = control_.rank(r).published.load(std::memory_order_acquire);
    if (published <= sequence || attempt_of(published) > attempt_of(sequence)) return false;
  }
  return true;
}

int Reducer::ahead() const {
  for (int r = 0; r < world_size_; ++r) {
    if (attempt_of(control_.rank(r).published.load(std::memory_order_acquire)) > attempt_of(first_)) return r;
  }
  return -1;
}

int Reducer::missing_publication() const {
  if (pending_.empty() || ahead() >= 0) return -1;
  for (int r = 0; r < world_size_; ++r) {
    if (control_.rank(r).published.load(std::memory_order_acquire) <= pending_.front().sequence) return r;
  }
  return -1;
}

void Reducer::publish(std::uint32_t unit, std::span<const Gradient> gradients) {
  const Layout& layout = *layouts_[unit];
  SHOAL_CHECK(gradients.size() == layout.placed().size(), "a unit is published with the wrong number of gradients");
  SHOAL_CHECK(has_slot(), "a unit is published without a slot");
  auto& words = control_.rank(rank_).slots[next_ % Control::kSlots];
  std::byte* const out = slot(rank_, next_);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    words.present[i] = gradients[i].whole != nullptr;
    if (gradients[i].whole == nullptr) continue;
    const Placed& p = layout.placed()[i];
    // Everything but the rows that this rank owns: before them and after them.
    const std::size_t own_begin = layout.begin_of(p, world_size_, Rank{rank_}) - p.offset_bytes;
    const std::size_t own_end = own_begin + layout.owned_bytes(p, world_size_, Rank{rank_});
    if (own_begin > 0) std::memcpy(out + p.offset_bytes, gradients[i].whole, own_begin);
    if (own_end < p.bytes) std::memcpy(out + p.offset_bytes + own_end, gradients[i].whole + own_end, p.bytes - own_end);
  }
  words.unit.store(unit, std::memory_order_relaxed);
  control_.rank(rank_).published.store(next_ + 1, std::memory_order_release);

  Pending pending{next_++, unit, {gradients.begin(), gradients.end()}, {}};
  pending.kept.resize(gradients.size());
  if (pending_.empty() && all_published(pending.sequence) && check_units(pending)) {
    pending_.push_back(std::move(pending));
    return sum(pending_.front());  // straight from the gradients: this rank's rows are not copied first
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto& g = pending.gradients[i];
    const Placed& p = layout.placed()[i];
    const std::size_t bytes = layout.owned_bytes(p, world_size_, Rank{rank_});
    if (g.whole == nullptr || bytes == 0) continue;
    std::byte* place = g.own;
    if (g.accumulate) {
      pending.kept[i] = std::make_unique_for_overwrite<std::byte[]>(bytes);
      place = pending.kept[i].get();
    }
    std::memcpy(place, g.whole + (layout.begin_of(p, world_size_, Rank{rank_}) - p.offset_bytes), bytes);
    g.whole = nullptr;
  }
  pending_.push_back(std::move(pending));
}

Result<void> Reducer::check_units(const Pending& pending) const {
  for (int r = 0; r < world_size_; ++r) {
    const std::uint32_t theirs = control_.rank(r).slots[pending.sequence % Control::kSlots].unit.load(std::memory_order_relaxed);
    if (theirs != pending.unit) {
      return fail(invalid_argument(fmt::format("the ranks' backward passes differ: rank {} reduces unit {} where rank {} reduces unit {}",
                                               rank_, pending.unit, r, theirs))
                      .with_reason("Diverged")
                      .with_hint("every rank must run the same modules in the same order in a step"));
    }
  }
  return {};
}

Result<bool> Reducer::serve() {
  if (pending_.empty()) return false;
  if (!all_published(pending_.front().sequence)) {
    const int rank = ahead();
    if (rank < 0) return false;
    overtaken_by_ = rank;
    pending_.clear();
    control_.rank(rank_).consumed.store(next_, std::memory_order_release);
    return true;
  }
  SHOAL_OK(check_units(pending_.front()));
  sum(pending_.front());
  return true;
}

void Reducer::start_over() {
  pending_.clear();
  reduced_.clear();
  overtaken_by_ = -1;
  left_off_ = next_;
  first_ = next_ = (attempt_of(first_) + 1) << kAttemptShift;
  control_.rank(rank_).consumed.store(next_, std::memory_order_release);
  control_.rank(rank_).published.store(next_, std::memory_order_release);
}

void Reducer::sum(Pending& pending) {
  const Layout& layout = *layouts_[pending.unit];
  const auto& words = control_.rank(rank_).slots[pending.sequence % Control::kSlots];
  Reduced reduced{pending.unit, std::vector<bool>(pending.gradients.size())};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < pending.gradients.size(); ++i) {
    const Placed& p = layout.placed()[i];
    const auto& g = pending.gradients[i];
    const std::size_t begin = layout.begin_of(p, world_size_, Rank{rank_}), bytes = layout.owned_bytes(p, world_size_, Rank{rank_});
    sources.clear();
    for (int r = 0; r < world_size_; ++r) {
      if (r == rank_) {
        if (words.present[i] == 0) continue;
        reduced.present[i] = true;
        sources.push_back(g.whole != nullptr ? g.whole + (begin - p.offset_bytes) : pending.kept[i] ? pending.kept[i].get() : g.own);
      } else if (control_.rank(r).slots[pending.sequence % Control::kSlots].present[i] != 0) {
        reduced.present[i] = true;
        sources.push_back(slot(r, pending.sequence) + begin);
      }
    }
    if (sources.empty() || bytes == 0) continue;
    reduce(p.parameter.dtype, sources, 1.0 / world_size_, g.accumulate, g.own, bytes / dtype_bytes(p.parameter.dtype));
  }
  control_.rank(rank_).consumed.store(pending.sequence + 1, std::memory_order_release);
  reduced_.push_back(std::move(reduced));
  pending_.pop_front();
}

}  // namespace shoal::fsdp
