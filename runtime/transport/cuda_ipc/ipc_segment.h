// The shared memory of a communicator's ranks on one host. It has the ranks that have joined, the handles of their device memory and
// events, and counts of the work that each rank has put on its stream.
//
// A rank's stream writes a word here behind each piece of work that others wait for, once the rank has counted the piece. A reader of the
// count makes its own stream wait for the word. So no host waits for a device. Each wait is for work that was on a stream before, so waits
// cannot form a cycle. A survivor writes the word of a rank that has died, whose stream will not.
//
// On devices whose streams write no words, a rank records one of its events instead. No survivor can end a wait for the event of a dead
// process.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace shoal::runtime {

struct IpcSegment {
  static constexpr int kMaxRanks = 16;
  static constexpr int kEvents = 2;  // events of a rank, which it uses in turn
  static constexpr std::uint64_t kReleased = std::uint64_t{1} << 62;

  enum class Stage : std::uint32_t { kAbsent, kJoined, kClosed };  // kClosed: the rank has no memory of another one open any more
  enum class Region { kCollective, kMessages };                    // parts of a rank's memory, each allocated with its first use
  static constexpr int kRegions = 2;

  struct Rank {
    std::atomic<Stage> stage;
    std::atomic<std::int32_t> pid;
    std::atomic<std::uint32_t> words;             // 1 if its device's streams write words; written before it joins
    std::array<CudaIpcHandle, kEvents> events;    // written before it joins
    std::array<CudaIpcHandle, kRegions> memory;   // each written before the first count of its use
    std::atomic<std::uint64_t> passed;            // word: the last record that its stream has passed, or kReleased
    std::atomic<std::uint32_t> released;          // 1: the rank has died, and streams pass its steps without its data
    std::atomic<std::uint64_t> records;           // number of records on the rank's stream
    std::atomic<std::uint64_t> steps;             // number of steps of collectives
    std::atomic<std::uint64_t> sent[kMaxRanks];   // number of pieces of messages to each rank, put into this rank's memory
    std::atomic<std::uint64_t> taken[kMaxRanks];  // number of pieces of messages from each rank, copied out of its memory
  };
  Rank ranks[kMaxRanks];

  // Opens the segment with this name, or makes it with zeros. Its memory exists until the last rank has closed it.
  static Result<std::shared_ptr<IpcSegment>> open(const std::string& name);
  // Takes the name away. The ranks that have it open keep it.
  static void forget(const std::string& name);
};

}  // namespace shoal::runtime
