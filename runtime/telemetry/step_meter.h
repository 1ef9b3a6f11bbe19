// Divides the time of a rank's training thread among activities (live_page.h), and adds it up by step.
//
// Pure: the caller passes times. Activities lie inside each other: the innermost one counts, and the one around it goes on after it. Waits
// lie inside any activity, and count instead of it.
//
// A step ends with its optimizer's step. A program may have several optimizers, so the step is complete once something else follows:
// a forward, the loader, the same optimizer again. A loop that reports its batches has one step per batch in which an optimizer stepped.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/telemetry/rows.h"

namespace shoal::runtime {

class StepMeter {
 public:
  using Nanos = std::int64_t;  // monotonic

  struct Step {
    StepRow row;  // without rank, world, generation and end_us
    Nanos begin = 0, end = 0;
    std::vector<Span> spans = {};  // from `begin`
  };

  explicit StepMeter(Nanos now) : begin_(now), last_(now) {}

  Activity activity() const { return waits_ > 0 ? wait_ : inner(); }
  int unit() const;  // the innermost unit, or -1
  // A step has ended that take() has not returned.
  bool ended() const { return ended_.has_value(); }

  // `key`: distinguishes activities of one kind: a unit's number, an optimizer's, or -1.
  void begin(Activity activity, int key, Nanos now);
  // Also ends the activities inside this one whose own ends were not reported, as after an exception. No effect without such an activity.
  void end(Activity activity, int key, Nanos now);
  // `cpu`: CPU time of the calling thread since any fixed time, if that is known.
  void end_optimizer(int key, Nanos now, std::optional<Nanos> cpu);
  // The program draws its next batch.
  void begin_batch(Nanos now);
  // Forgets all activities: the program has left them.
  void unwind(Nanos now);
  // Waits may lie inside each other: the outer one counts.
  void wait_begin(Activity wait, int unit, Nanos now);
  void wait_end(Nanos now);

  // The step that has ended, if no optimizer of the same step can follow.
  std::optional<Step> take();
  // As take(), for a program that is idle after its optimizer's step. `last`: also during an activity, because the recording ends.
  std::optional<Step> take_idle(bool last);

  void set_detailed(bool on) { detailed_ = on; }

 private:
  struct Open {
    Activity activity;
    int key;
    Nanos begin;
  };
  struct Ended {
    Nanos end;
    std::optional<Nanos> cpu;
    std::array<Nanos, kNumActivities> sums;
    std::size_t spans;
  };

  Activity inner() const { return open_.empty() ? Activity::kElsewhere : open_.back().activity; }
  bool in_optimizer() const;
  void count(Nanos now);
  void record(Activity activity, int unit, Nanos begin, Nanos end);
  Step finish();

  // Bounds, because a loop without an optimizer ends no step.
  static constexpr std::size_t kMostSpans = 20'000, kMostOpen = 1000;

  Nanos begin_, last_;
  std::optional<Nanos> cpu_;  // at the end of the step before
  std::array<Nanos, kNumActivities> sums_ = {};
  std::vector<Open> open_;
  int waits_ = 0, wait_unit_ = -1;
  Activity wait_ = Activity::kGather;
  Nanos wait_begin_ = 0;
  std::vector<Span> spans_;
  bool detailed_ = true, batches_ = false;
  std::optional<Ended> ended_;  // an optimizer's step has ended, and another one's may follow
  std::vector<int> stepped_;    // the optimizers of the present step
  bool complete_ = false;       // no further optimizer of this step can follow
};

}  // namespace shoal::runtime
