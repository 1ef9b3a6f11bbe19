#include "fsdp/protect/protected_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fsdp/kernels/threads.h"

namespace shoal::fsdp {

namespace {

using Item = StepRecord::Item;

// Keeps the compiler from moving stores across this call. The processor's own reordering never shows in a killed process's memory.
void keep_order() { std::atomic_signal_fence(std::memory_order_seq_cst); }

Elementwise kernel_of(const Item& item) {
  if (item.kernel == Item::Kernel::kCopy) return {item.dtypes, 0, {}, {}};  // no arithmetic: Chunk::make copies the bytes
  return item.kernel == Item::Kernel::kAdam ? adam_update(item.adam, item.step, item.dtypes) : sgd_update(item.sgd, item.dtypes);
}

// A part of a shard, and the place of its old values in the lane's undo record.
class Chunk {
 public:
  Chunk(const Elementwise& update, const Shard& shard, std::size_t from, std::size_t numel, std::byte* undo)
      : update_(update), shard_(shard), from_(from), numel_(numel), undo_(undo) {}

  // Copies the values that the update overwrites. The parameter's copy in another dtype is not saved: an update makes it anew.
  void save(const std::function<void()>& between) const {
    each([&](std::byte* values, std::byte* saved, std::size_t bytes) {
      std::memcpy(saved, values, bytes);
      between();
    });
  }
  void restore() const {
    each([](std::byte* values, const std::byte* saved, std::size_t bytes) { std::memcpy(values, saved, bytes); });
  }
  void make(const std::function<void()>& between) const {
    if (between) {
      make_part(from_, from_ + numel_ / 2);
      between();
    }
    make_part(from_ + (between ? numel_ / 2 : 0), from_ + numel_);
  }

 private:
  void make_part(std::size_t begin, std::size_t end) const {
    if (update_.f32) return run_part(update_, shard_, begin, end);
    const std::size_t size = dtype_bytes(update_.dtypes[0]);  // a copy needs no undo record: made again, it has the same bits
    std::memcpy(shard_.at[0] + begin * size, shard_.at[1] + begin * size, (end - begin) * size);
  }

  template <class F>
  void each(const F& f) const {
    std::byte* saved = undo_;
    for (std::size_t i = 0; i < kCopy; ++i) {
      if (shard_.at[i] == nullptr || !(update_.writes >> i & 1)) continue;
      const std::size_t size = dtype_bytes(update_.dtypes[i]);
      f(shard_.at[i] + from_ * size, saved, numel_ * size);
      saved += StepRecord::kChunk * size;
    }
  }

  const Elementwise& update_;
  const Shard& shard_;
  const std::size_t from_, numel_;
  std::byte* const undo_;
};

}  // namespace

Result<bool> ProtectedUpdate::begin(std::uint64_t step) {
  const auto& h = record_.header();
  step_ = step;
  if (h.recorded.load() == step && h.finished.load() + 1 == step) return false;
  if (h.recorded.load() + 1 != step || h.finished.load() + 1 != step)
    return fail(internal(
        fmt::format("step {} cannot be recorded: step {} is, and step {} is finished", step, h.recorded.load(), h.finished.load())));
  num_items_ = 0;
  position_ = 0;
  return true;
}

Result<void> ProtectedUpdate::add(Item item, const Shard& shard, const float* counter) {
  const auto& h = record_.header();
  if (num_items_ == h.max_items) return fail(internal("a protected update has more shards than the model has parameters"));
  item.first = position_;
  item.numel = shard.numel;
  for (std::size_t i = 0; i < kMaxArrays; ++i) {
    SHOAL_TRY(item.at[i], record_.place_of(shard.at[i], shard.numel * dtype_bytes(item.dtypes[i]), arenas_));
  }
  SHOAL_TRY(item.counter, record_.place_of(reinterpret_cast<const std::byte*>(counter), sizeof *counter, arenas_));
  record_.item(num_items_++) = item;
  position_ += shard.numel;
  return {};
}

void ProtectedUpdate::record() {
  record_.header().num_items = num_items_;
  keep_order();
  record_.header().recorded.store(step_, std::memory_order_release);
}

void ProtectedUpdate::divide(int num_threads) {
  auto& h = record_.header();
  std::uint64_t total = 0;
  for (const auto& item : record_.items()) total += item.numel;
  const Pieces pieces(total, num_threads);
  for (int i = 0; i < pieces.count; ++i) {
    auto& lane = record_.lane(static_cast<std::size_t>(i));
    lane.begin = pieces.begin(i);
    lane.end = pieces.end(i);
    lane.progress.store(2 * lane.begin, std::memory_order_relaxed);
  }
  h.num_lanes = static_cast<std::uint32_t>(pieces.count);
  keep_order();
  h.begun.store(h.recorded.load(), std::memory_order_release);
}

void ProtectedUpdate::run(int num_threads, const OnMoment& on_moment) {
  auto& h = record_.header();
  const std::uint64_t step = h.recorded.load();
  if (h.finished.load() == step) return;
  num_threads = std::clamp(num_threads, 1, static_cast<int>(StepRecord::kMaxLanes));
  const bool continued = h.begun.load() == step;
  if (!continued) divide(num_threads);
  const std::size_t num_lanes = h.num_lanes;
  const std::uint64_t total = num_lanes == 0 ? 0 : record_.lane(num_lanes - 1).end;
  const Pieces pieces(total, num_threads);
  if (!continued && static_cast<std::size_t>(pieces.count) == num_lanes) {
    over_threads(total, num_threads, [&](std::size_t, std::size_t, int part) { run_lane(static_cast<std::size_t>(part), on_moment); });
  } else {
    for (std::size_t lane = 0; lane < num_lanes; ++lane) run_lane(lane, on_moment);
  }
  for (const auto& item : record_.items()) {
    const float count = static_cast<float>(item.step);
    if (auto* counter = record_.at(item.counter, arenas_)) std::memcpy(counter, &count, sizeof count);
  }
  keep_order();
  h.finished.store(step, std::memory_order_release);
}

void ProtectedUpdate::run_lane(std::size_t index, const OnMoment& on_moment) const {
  auto& lane = record_.lane(index);
  const auto items = record_.items();
  const std::uint64_t progress = lane.progress.load(std::memory_order_relaxed);
  std::uint64_t position = progress / 2;
  bool torn = progress % 2 != 0;
  const auto moment = [&](Moment m) { on_moment ? on_moment(m, position) : void(); };
  auto item = std::ranges::upper_bound(items, position, {}, &Item::first) - (items.empty() ? 0 : 1);
  for (; position < lane.end; ++item) {
    const Elementwise update = kernel_of(*item);
    Shard shard{{}, item->numel};
    for (std::size_t i = 0; i < kMaxArrays; ++i) shard.at[i] = record_.at(item->at[i], arenas_);
    const std::uint64_t end = std::min(lane.end, item->first + item->numel);
    while (position < end) {
      const std::uint64_t numel = std::min<std::uint64_t>(StepRecord::kChunk, end - position);
      const Chunk chunk(update, shard, position - item->first, numel, record_.undo(index));
      moment(Moment::kBeforeUndo);
      if (torn) {
        chunk.restore();
        torn = false;
      } else {
        chunk.save([&] { moment(Moment::kInUndo); });
        keep_order();
        lane.progress.store(2 * position + 1, std::memory_order_release);
        keep_order();
      }
      moment(Moment::kAfterUndo);
      chunk.make(on_moment ? [&] { moment(Moment::kInChunk); } : std::function<void()>{});
      keep_order();
      lane.progress.store(2 * (position + numel), std::memory_order_release);
      keep_order();  // the next chunk's undo copy comes later
      moment(Moment::kAfterChunk);
      position += numel;
    }
  }
}

}  // namespace shoal::fsdp
