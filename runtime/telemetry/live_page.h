// A rank's activity, as its folder of the run shows it to other processes (docs/runs.md). The telemetry's thread writes it in place, so a
// reader sees what a rank that hangs does.
#pragma once

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

  std::uint64_t magic;
  std::int64_t pid;
  std::int64_t start_us;  // time of day
  std::int64_t beat_us;   // time of day when the telemetry's thread has written it last, about four times a second
  std::int64_t since_us;  // time of day since when the activity lasts
  std::uint64_t step;     // steps that have ended
  std::uint32_t rank, world, generation;
  std::uint32_t activity;  // an Activity
  std::int32_t unit;       // the unit of the activity, or -1
  std::int32_t thread;     // id of the training thread
  std::uint64_t padding[7];
};
static_assert(sizeof(LivePage) == 128);

}  // namespace shoal::runtime
