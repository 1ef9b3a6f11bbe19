// A page that shows where a rank is now. It lies in the rank's folder of the run (docs/runs.md); the rank writes in place, readers map it.
//
// A store costs the rank a few nanoseconds, and a reader sees what a rank that hangs does. Fields are read one by one, so a reader may see
// two states at once for a moment; it decides only by what holds for longer.
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal::runtime {

// The occupation of a rank's training thread.
enum class Activity : std::uint32_t {
  kElsewhere,  // in the program, outside of what follows
  kLoader,
  kForward,
  kBackward,
  kOptimizer,
  kSave,
  // waits for other ranks
  kGather,
  kReduce,
  kWindow,
  kSync,
  kEnded,
};
inline constexpr int kNumActivities = static_cast<int>(Activity::kEnded);

constexpr bool is_wait(Activity activity) { return activity >= Activity::kGather && activity < Activity::kEnded; }
// The keys of docs/runs.md: "out", "load", "fwd", "bwd", "opt", "save", "gather", "reduce", "window", "sync", "ended".
const char* key_of(Activity activity);

struct LivePage {
  static constexpr std::uint64_t kMagic = 0x31766c6c616f6873;  // "shoallv1"

  std::atomic<std::uint64_t> magic;  // written last at the begin
  std::atomic<std::int64_t> pid;
  std::atomic<std::int64_t> start_us;  // time of day
  std::atomic<std::int64_t> beat_us;   // time of day when the process's recording thread has run last, about four times a second
  std::atomic<std::int64_t> since_us;  // time of day since when the activity lasts
  std::atomic<std::uint64_t> step;     // steps that have ended
  std::atomic<std::uint32_t> rank, world, generation;
  std::atomic<std::uint32_t> activity;  // an Activity
  std::atomic<std::int32_t> unit;       // the unit, or -1
  std::atomic<std::int32_t> thread;     // id of the training thread
  std::uint64_t padding[7];
};
static_assert(sizeof(LivePage) == 128);

}  // namespace shoal::runtime
