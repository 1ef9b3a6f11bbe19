#include "runtime/shm/segment_pool.h"

#include <sys/resource.h>

#include <algorithm>

#include "runtime/shm/readers.h"
#include "runtime/shm/wide_copy.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kSmallestStep = 4096;
constexpr std::size_t kMaxTurned = 4096;  // most segments that one fill looks at

// Rounds up to a size that later values are likely to fit as well. Pages that are not written take no memory.
std::size_t capacity_of(std::size_t bytes) {
  std::size_t step = kSmallestStep;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

// Each segment takes a descriptor here, and in each reader a descriptor and one of the 65,530 mappings of a process.
std::size_t limit_of(std::size_t max_segments) {
  if (max_segments != 0) return max_segments;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::clamp<std::size_t>(limit.rlim_cur / 4, 64, 1 << 15) : 64;
}

}  // namespace

SegmentPool::SegmentPool() : SegmentPool(Options{}) {}

SegmentPool::SegmentPool(Options options) : options_(options), max_segments_(limit_of(options.max_segments)) {}

Result<Fd> SegmentPool::fill(std::size_t bytes, std::span<const Part> parts) {
  SHOAL_TRY(auto again, fill_again(bytes, parts));
  if (again) return *std::move(again);
  const bool kept = bytes >= options_.min_bytes;
  Segment segment;
  segment.bytes = kept ? capacity_of(bytes) : bytes;
  SHOAL_TRY(segment.memory, make_memory("shoal:value", segment.bytes));
  if (is_wide(bytes)) {  // through a mapping, which is kept for the next fill; for wide copies that is as fast as write_at
    SHOAL_TRY(segment.mapping, map(segment.memory, segment.bytes, Access::kReadWrite));
    for (const Part& p : parts) SHOAL_OK(wide_fill({segment.mapping.data() + p.offset, p.bytes.size()}, p.bytes));
  } else {
    for (const Part& p : parts) SHOAL_OK(write_at(segment.memory, p.offset, p.bytes));
  }
  if (!kept) return std::move(segment.memory);
  SHOAL_TRY(Fd reader, reader_of(segment.memory));
  put_back(std::move(segment));
  return reader;
}

Result<std::optional<Fd>> SegmentPool::fill_again(std::size_t bytes, std::span<const Part> parts) {
  auto segment = bytes < options_.min_bytes ? std::nullopt : take_idle(bytes);
  if (!segment) return std::nullopt;
  if (segment->mapping.data() == nullptr) {
    SHOAL_TRY(segment->mapping, map(segment->memory, segment->bytes, Access::kReadWrite));
    segment->mapping.populate();
  }
  for (const Part& p : parts) wide_copy({segment->mapping.data() + p.offset, p.bytes.size()}, p.bytes);
  SHOAL_TRY(Fd reader, reader_of(segment->memory));
  put_back(*std::move(segment));
  return std::optional<Fd>(std::move(reader));
}

std::optional<SegmentPool::Segment> SegmentPool::take_idle(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::size_t num_checks = 0;
  for (std::size_t k = std::min(segments_.size(), kMaxTurned); k > 0 && num_checks < options_.max_checks; --k) {
    Segment segment = std::move(segments_.front());
    segments_.pop_front();
    const bool fits = segment.bytes >= bytes && segment.bytes / 2 <= bytes;
    if (fits && !has_holders(segment.memory)) {
      bytes_ -= segment.bytes;
      return segment;
    }
    num_checks += fits;
    segments_.push_back(std::move(segment));
  }
  return std::nullopt;
}

void SegmentPool::put_back(Segment segment) {
  segment.idle_since.reset();
  const std::lock_guard lock(mutex_);
  if (segments_.size() >= max_segments_) return;  // the memory is not kept here; it lives as long as its readers
  bytes_ += segment.bytes;
  segments_.push_back(std::move(segment));
}

void SegmentPool::tend(TimePoint now) {
  std::vector<Segment> given_back, unmapped;
  {
    const std::lock_guard lock(mutex_);
    std::size_t idle = 0;
    std::deque<Segment> kept;
    for (Segment& s : segments_) {
      if (has_holders(s.memory)) {
        s.idle_since.reset();
        kept.push_back(std::move(s));
        continue;
      }
      if (!s.idle_since) s.idle_since = now;
      const bool too_long = now - *s.idle_since >= options_.idle, too_much = idle + s.bytes > options_.max_idle_bytes;
      if (too_long || too_much) {
        bytes_ -= s.bytes;
        given_back.push_back(std::move(s));
        continue;
      }
      idle += s.bytes;
      if (s.mapping.data() == nullptr) {
        bytes_ -= s.bytes;  // it is added again when the segment is put back
        unmapped.push_back(std::move(s));
      } else {
        kept.push_back(std::move(s));
      }
    }
    segments_ = std::move(kept);
  }
  for (Segment& s : unmapped) {
    const auto idle_since = s.idle_since;
    auto mapping = map(s.memory, s.bytes, Access::kReadWrite);
    if (!mapping) continue;  // without a mapping the memory is freed
    s.mapping = *std::move(mapping);
    s.mapping.populate();
    const std::lock_guard lock(mutex_);
    s.idle_since = idle_since;
    bytes_ += s.bytes;
    segments_.push_back(std::move(s));
  }
}

std::size_t SegmentPool::trim() {
  std::vector<Segment> given_back;
  std::size_t out = 0;
  const std::lock_guard lock(mutex_);
  for (auto it = segments_.begin(); it != segments_.end();) {
    if (has_holders(it->memory)) {
      ++it;
      continue;
    }
    out += it->bytes;
    given_back.push_back(std::move(*it));
    it = segments_.erase(it);
  }
  bytes_ -= out;
  return out;
}

void SegmentPool::abandon_after_fork() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // the mutex may be held by a thread that does not exist in the child
  if (lock) segments_.clear();
}

std::size_t SegmentPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

bool SegmentPool::full() const { return num_segments() >= max_segments_; }

std::size_t SegmentPool::num_segments() const {
  const std::lock_guard lock(mutex_);
  return segments_.size();
}

}  // namespace shoal::runtime
