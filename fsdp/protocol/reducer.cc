#include "fsdp/protocol/reducer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "fsdp/kernels/kernels.h"
#include "runtime/core/check.h"

namespace shoal::fsdp {

Reducer::Reducer(Control& control, int rank, Grid grid, std::vector<const Layout*> layouts, const Slots& slots, RemoteSums* remote,
                 SumOrder order)
    : control_(control),
      rank_(rank),
      grid_(grid),
      layouts_(std::move(layouts)),
      slots_(slots),
      remote_(remote),
      order_(remote == nullptr && grid.world_size <= 31 ? order : SumOrder::kTree) {
  SHOAL_CHECK(slots.num_slots() >= 1 && slots.num_slots() <= Control::kMaxSlots, "a reducer has 1 to kMaxSlots slots");
}

int Reducer::missing_slot() const {
  const std::uint64_t needed = next_ - first_ < slots_.num_slots() ? left_off_ : next_ - slots_.num_slots() + 1;
  // Checks this rank last: it lags only because another rank has not published, and that rank is the one to name.
  for (int i = 1; i <= grid_.world_size; ++i) {
    const int r = (rank_ + i) % grid_.world_size;
    if (control_.rank(r).consumed.load(std::memory_order_acquire) < needed) return r;
  }
  return -1;
}

bool Reducer::has_slot() const { return missing_slot() < 0; }

bool Reducer::all_published(std::uint64_t sequence) const {
  for (int r = 0; r < grid_.world_size; ++r) {
    const std::uint64_t published = control_.rank(r).published.load(std::memory_order_acquire);
    if (published <= sequence || attempt_of(published) > attempt_of(sequence)) return false;
  }
  return true;
}

bool Reducer::ready(std::uint64_t sequence) const {
  return all_published(sequence) && (remote_ == nullptr || (remote_->missing_sender(sequence) < 0 && remote_->sent(sequence)));
}

int Reducer::ahead() const {
  for (int r = 0; r < grid_.world_size; ++r) {
    if (attempt_of(control_.rank(r).published.load(std::memory_order_acquire)) > attempt_of(first_)) return r;
  }
  return -1;
}

int Reducer::missing_publication() const {
  if (pending_.empty() || ahead() >= 0) return -1;
  for (int r = 0; r < grid_.world_size; ++r) {
    if (control_.rank(r).published.load(std::memory_order_acquire) <= pending_.front().sequence) return r;
  }
  return remote_ == nullptr ? -1 : remote_->missing_sender(pending_.front().sequence);
}

// Copies a gradient to the slot. This rank's own slices are left out, unless ranks of other replicas sum them, too.
void Reducer::bring(const Placed& p, const Gradient& g, How how, std::byte* out) const {
  const std::size_t to = dtype_bytes(p.reduce_dtype());
  const bool to_replicas = how.everywhere && grid_.replicas > 1;
  const Piece own = own_piece(p);
  if (g.whole == nullptr) {
    std::memset(out, 0, p.slot_bytes);
  } else {
    const std::size_t from = dtype_bytes(g.dtype);
    const auto copy = [&](std::size_t begin, std::size_t end) {
      if (begin < end) cast(g.dtype, g.whole + begin * from, p.reduce_dtype(), out + begin * to, end - begin);
    };
    if (to_replicas || own.runs == 0) {
      copy(0, p.numel);
    } else {
      std::size_t next = 0;
      for (std::size_t k = 0; k < own.runs; ++k) {
        copy(next, own.begin + k * own.stride);
        next = own.begin + k * own.stride + own.length;
      }
      copy(next, p.numel);
    }
  }
  if (!to_replicas || !g.has_partial) return;
  const DType partial = sum_dtype(p.reduce_dtype());
  for (std::size_t k = 0; k < own.runs; ++k) {
    const Source source[] = {{g.partial + k * own.length * dtype_bytes(partial), partial, rank_}};
    reduce(source, 1, true, p.reduce_dtype(), out + (own.begin + k * own.stride) * to, own.length);
  }
}

// Copies this rank's own slices out of the gradient: to `g.own` if dtype and use allow that, else to the slot.
Reducer::Where Reducer::keep(const Placed& p, const Gradient& g, std::byte* out) const {
  const Piece own = own_piece(p);
  const bool in_own = !g.accumulate && g.partial == nullptr && p.parameter.dtype == p.reduce_dtype();
  const std::size_t from = dtype_bytes(g.dtype), to = dtype_bytes(p.reduce_dtype());
  for (std::size_t k = 0; k < own.runs; ++k) {
    const std::size_t begin = own.begin + k * own.stride;
    cast(g.dtype, g.whole + begin * from, p.reduce_dtype(), in_own ? g.own + k * own.length * to : out + begin * to, own.length);
  }
  return in_own ? Where::kOwn : Where::kSlot;
}

void Reducer::publish(std::uint32_t unit, std::span<const Gradient> gradients, How how) {
  const Layout& layout = *layouts_[unit];
  SHOAL_CHECK(gradients.size() == layout.placed().size(), "a unit is published with the wrong number of gradients");
  SHOAL_CHECK(has_slot(), "a unit is published without a slot");
  auto& mine = words(rank_, next_);
  Pending pending{next_, unit, how, {gradients.begin(), gradients.end()}, std::vector<Where>(gradients.size(), Where::kNowhere)};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Placed& p = layout.placed()[i];
    const bool to_replicas = how.everywhere && grid_.replicas > 1;
    mine.present[i] = gradients[i].whole != nullptr || (to_replicas && gradients[i].has_partial);
    if (mine.present[i] == 0) continue;
    bring(p, gradients[i], how, own_slot(next_, p));
    pending.where[i] = to_replicas ? Where::kSlot : Where::kGradient;
  }
  mine.unit.store(unit, std::memory_order_relaxed);
  mine.everywhere.store(how.everywhere, std::memory_order_relaxed);
  mine.weight.store(how.weight, std::memory_order_relaxed);
  control_.rank(rank_).published.store(++next_, std::memory_order_release);

  if (remote_ != nullptr) remote_->published(pending.sequence, unit, how.everywhere);
  const bool at_once = remote_ == nullptr && pending_.empty() && all_published(pending.sequence) && check_units(pending);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Placed& p = layout.placed()[i];
    auto& g = pending.gradients[i];
    // If the sum runs at once, it reads this rank's slices from the gradient itself, which saves a copy.
    if (pending.where[i] == Where::kGradient && !(at_once && g.dtype == p.reduce_dtype())) {
      pending.where[i] = keep(p, g, own_slot(pending.sequence, p));
    }
    if (!at_once) g.whole = nullptr;
  }
  pending_.push_back(std::move(pending));
  if (at_once) finish_oldest();
}

Result<void> Reducer::check_units(const Pending& pending) const {
  for (int r = 0; r < grid_.world_size; ++r) {
    const auto& theirs = words(r, pending.sequence);
    if (const auto unit = theirs.unit.load(std::memory_order_relaxed); unit != pending.unit) {
      return fail(invalid_argument(fmt::format("the ranks' backward passes differ: rank {} reduces unit {} where rank {} reduces unit {}",
                                               rank_, pending.unit, r, unit))
                      .with_reason("Diverged")
                      .with_hint("every rank must run the same modules in the same order in a step"));
    }
    if ((theirs.everywhere.load(std::memory_order_relaxed) != 0) != pending.how.everywhere) {
      return fail(invalid_argument(fmt::format("only one of ranks {} and {} reduces gradients over replicas", rank_, r))
                      .with_reason("Diverged")
                      .with_hint("call set_requires_all_reduce alike on every rank"));
    }
  }
  return {};
}

Result<bool> Reducer::serve() {
  if (unwanted_) {
    return fail(invalid_argument(
                    fmt::format("another rank has a gradient of {}, which rank {} does not train", *std::exchange(unwanted_, {}), rank_))
                    .with_reason("Diverged")
                    .with_hint("set requires_grad alike on every rank"));
  }
  if (pending_.empty()) return false;
  if (!ready(pending_.front().sequence)) {
    const int rank = ahead();
    if (rank < 0) return false;
    overtaken_by_ = rank;
    pending_.clear();
    if (remote_ != nullptr) remote_->drop();
    control_.rank(rank_).consumed.store(next_, std::memory_order_release);
    return true;
  }
  SHOAL_OK(check_units(pending_.front()));
  finish_oldest();
  return true;
}

void Reducer::start_over() {
  pending_.clear();
  if (remote_ != nullptr) remote_->drop();
  reduced_.clear();
  overtaken_by_ = -1;
  left_off_ = next_;
  first_ = next_ = (attempt_of(first_) + 1) << kAttemptShift;
  control_.rank(rank_).consumed.store(next_, std::memory_order_release);
  control_.rank(rank_).published.store(next_, std::memory_order_release);
}

int Reducer::awaited_unit() const {
  for (int r = 0; r < grid_.world_size; ++r) {
    const std::uint64_t published = control_.rank(r).published.load(std::memory_order_acquire);
    if (published > next_ && attempt_of(published) == attempt_of(next_)) {
      return static_cast<int>(words(r, next_).unit.load(std::memory_order_relaxed));
    }
  }
  return -1;
}

double Reducer::scale_of(const Pending& pending) const {
  if (pending.how.weight < 0) return pending.how.scale;
  double sum = 0;
  for (int r = 0; r < grid_.world_size; ++r) sum += std::max(0.0, words(r, pending.sequence).weight.load(std::memory_order_relaxed));
  return sum > 0 ? 1 / sum : 1;
}

bool Reducer::has_gradient(const Slots::Leaf& leaf, const Pending& pending, std::size_t parameter) const {
  for (int r = leaf.ranks.begin; r < leaf.ranks.begin + leaf.ranks.size; ++r) {
    if (sums(r, pending.how) && words(r, pending.sequence).present[parameter] != 0) return true;
  }
  return false;
}

void Reducer::sum(const Pending& pending, std::size_t parameter) {
  const Placed& p = layouts_[pending.unit]->placed()[parameter];
  const Gradient& g = pending.gradients[parameter];
  const bool into_partial = !pending.how.everywhere && g.partial != nullptr;
  const DType out_dtype = into_partial ? sum_dtype(p.reduce_dtype()) : p.parameter.dtype;
  const std::size_t out_bytes = dtype_bytes(out_dtype);
  const Piece own = own_piece(p);
  std::vector<std::size_t> leaves;
  for (std::size_t leaf = 0; leaf < slots_.leaves().size(); ++leaf) {
    if (has_gradient(slots_.leaves()[leaf], pending, parameter)) leaves.push_back(leaf);
  }
  if (leaves.empty()) return;
  std::vector<Source> sources;
  for (std::size_t k = 0; k < own.runs; ++k) {
    sources.clear();
    const std::size_t at = own.begin + k * own.stride;  // element of the whole parameter
    for (const std::size_t leaf : leaves) {
      const Slots::Leaf& of = slots_.leaves()[leaf];
      Source source{slots_.at(leaf, pending.sequence, p), slots_.dtype(leaf, p, pending.how.everywhere), place_of(of)};
      source.data += at * dtype_bytes(source.dtype);
      if (of.ranks.begin == rank_ && pending.where[parameter] != Where::kSlot) {
        source.data = pending.where[parameter] == Where::kGradient ? g.whole + at * dtype_bytes(source.dtype)
                                                                   : g.own + k * own.length * dtype_bytes(source.dtype);
      }
      sources.push_back(source);
    }
    std::byte* const begin = into_partial ? g.partial : g.own;
    if (begin == nullptr) {
      unwanted_ = fmt::format("parameter {} of unit {}", p.parameter.name, pending.unit);
      return;
    }
    std::byte* const out = begin + k * own.length * out_bytes;
    reduce(sources, into_partial ? 1 : scale_of(pending), into_partial ? g.has_partial : g.accumulate, out_dtype, out, own.length);
  }
}

void Reducer::finish_oldest() {
  const Pending& pending = pending_.front();
  Reduced reduced{pending.unit, std::vector<bool>(pending.gradients.size())};
  for (std::size_t i = 0; i < pending.gradients.size(); ++i) {
    reduced.present[i] = std::ranges::any_of(slots_.leaves(), [&](const auto& leaf) { return has_gradient(leaf, pending, i); });
    sum(pending, i);
  }
  control_.rank(rank_).consumed.store(pending.sequence + 1, std::memory_order_release);
  reduced_.push_back(std::move(reduced));
  pending_.pop_front();
}

}  // namespace shoal::fsdp
