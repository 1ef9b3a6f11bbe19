// Large memories that this process fills for others to read, filled again once nobody reads them: pages that were touched before take a
// copy at memory speed, fresh ones cost the kernel several times that.
//
// Who reads is the kernel's to say (readers.h): whoever is told by it that a memory has no holders knows that none can come.
// Nobody but the process that made a memory fills it again, so that no bytes go from one job to another. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/shm/memory.h"

namespace shoal::runtime {

class SegmentPool {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Options {
    std::size_t min_bytes = 128 << 10;                                   // smaller ones are not kept
    std::size_t max_idle_bytes = std::size_t{4} << 30;                   // that nobody reads
    std::chrono::steady_clock::duration idle = std::chrono::seconds(5);  // then they are given back
    std::size_t max_segments = 0;                                        // kept at a time; 0: as the descriptors of this process allow
    std::size_t max_looks = 8;                                           // for one that nobody reads, per memory that is wanted
  };
  struct Part {
    std::size_t offset = 0;
    std::span<const std::byte> bytes;
  };

  SegmentPool();
  explicit SegmentPool(Options options);

  // A descriptor, for reading, of a memory of at least `bytes` with these parts in it; what lies between them is anything of this process.
  // ResourceExhausted when the machine has no room. One that is filled while the pool is full is not kept, nor counted.
  Result<Fd> fill(std::size_t bytes, std::span<const Part> parts);
  // The same, in one that it has already and nobody reads, if there is such a one.
  Result<std::optional<Fd>> fill_again(std::size_t bytes, std::span<const Part> parts);
  // Gives back what was idle for long, and what is too much; makes the rest ready. Takes its time: not on a loop.
  void tend(TimePoint now);
  // Gives back all that is idle. Returns how many bytes that was.
  std::size_t trim();

  // In a process that was forked: what its parent keeps is not kept by this one, too.
  void abandon_after_fork();

  // Of all that is kept, read or not.
  std::size_t bytes() const;
  std::size_t num_segments() const;
  // As many as there may be.
  bool full() const;

 private:
  struct Segment {
    Fd memory;
    std::size_t bytes = 0;
    Mapping mapping;  // once it is filled for the second time, or tended; at once if that is the work of several cores
    std::optional<TimePoint> idle_since;
  };
  std::optional<Segment> take_idle(std::size_t bytes);
  void put_back(Segment segment);

  const Options options_;
  const std::size_t max_segments_;
  mutable std::mutex mutex_;
  std::deque<Segment> segments_;  // those that were looked at longest ago first
  std::size_t bytes_ = 0;
};

}  // namespace shoal::runtime
