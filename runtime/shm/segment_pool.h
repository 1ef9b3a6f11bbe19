// Large memories that this process fills for readers in other processes, and refills once they have no holders. A copy into pages that
// exist runs at memory speed; new pages cost several times as much.
//
// File locks show whether a memory has holders (readers.h); once it has none, it can get none. Only the process that made a memory fills it
// again, so that no bytes get from one job to another. Any thread.
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
    std::size_t min_bytes = 128 << 10;                                   // smallest memory that is kept
    std::size_t max_idle_bytes = std::size_t{4} << 30;                   // upper limit for memories without readers
    std::chrono::steady_clock::duration idle = std::chrono::seconds(5);  // time without readers before a memory is freed
    std::size_t max_segments = 0;                                        // kept at a time; 0: as the descriptor limit allows
    std::size_t max_checks = 8;                                          // checks for an idle memory per fill
  };
  struct Part {
    std::size_t offset = 0;
    std::span<const std::byte> bytes;
  };

  SegmentPool();
  explicit SegmentPool(Options options);

  // Returns a read-only descriptor of a memory of at least `bytes` bytes with these parts. The gaps contain arbitrary bytes of this
  // process. Returns ResourceExhausted if the machine has no room. A full pool neither keeps nor counts the memory.
  Result<Fd> fill(std::size_t bytes, std::span<const Part> parts);
  // As fill(), but only if the pool has an idle memory for it; otherwise nullopt.
  Result<std::optional<Fd>> fill_again(std::size_t bytes, std::span<const Part> parts);
  // Frees memories that were idle for long or exceed max_idle_bytes, and maps the other idle ones. Slow: not for a loop's thread.
  void tend(TimePoint now);
  // Frees all idle memories and returns their bytes.
  std::size_t trim();

  // Called in a forked child: drops the parent's memories.
  void abandon_after_fork();

  // Bytes of all kept memories, with readers or without.
  std::size_t bytes() const;
  std::size_t num_segments() const;
  // True if num_segments() has reached its limit.
  bool full() const;

 private:
  struct Segment {
    Fd memory;
    std::size_t bytes = 0;
    Mapping mapping;  // set by the second fill, by tend(), or by a wide first fill
    std::optional<TimePoint> idle_since;
  };
  std::optional<Segment> take_idle(std::size_t bytes);
  void put_back(Segment segment);

  const Options options_;
  const std::size_t max_segments_;
  mutable std::mutex mutex_;
  std::deque<Segment> segments_;  // least recently checked first
  std::size_t bytes_ = 0;
};

}  // namespace shoal::runtime
