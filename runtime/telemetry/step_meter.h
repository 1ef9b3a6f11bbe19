// Divides the time of a rank's training thread among activities (live_page.h), and adds it up by step.
//
// Pure: the caller passes times. Waits lie inside a forward or backward and count only as waits. A step ends with its optimizer's step. A
// program may have several optimizers, so the row is complete once something else follows: take() returns it.
#pragma once

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

  Activity activity() const { return waits_ > 0 ? wait_ : activity_; }
  int unit() const { return unit_; }
  // A step has ended that take() has not returned.
  bool ended() const { return ended_.has_value(); }

  // The thread begins an activity that is no wait.
  void go(Activity activity, Nanos now);
  // The forward or backward of a unit, inside of others.
  void unit_begin(Activity activity, int unit, Nanos now);
  void unit_end(Activity activity, int unit, Nanos now);
  // The backward pass has ended, and with it units whose own end nothing reports: their inputs need no gradients.
  void end_pass(Nanos now);
  // Waits may lie inside each other: the outer one counts.
  void wait_begin(Activity wait, int unit, Nanos now);
  void wait_end(Nanos now);
  // The optimizer's step has ended. `cpu`: of the thread, since any fixed time.
  void end_step(Nanos now, Nanos cpu);
  // The step that has ended, if no optimizer of the same step can follow.
  std::optional<Step> take();
  // The same, if the program does nothing else for now.
  std::optional<Step> take_last();
  // An exception has left the step: open units and waits are forgotten.
  void unwind(Nanos now);

  void set_detailed(bool on) { detailed_ = on; }

 private:
  struct Open {
    Activity activity;
    int unit;
    Nanos begin;
  };
  void count(Nanos now);
  void record(Activity activity, int unit, Nanos begin, Nanos end);
  std::optional<Step> finish();

  static constexpr std::size_t kMostSpans = 20'000;  // in one step; a loop without an optimizer makes no end

  Nanos begin_, last_;
  Nanos cpu_ = -1;
  Activity activity_ = Activity::kElsewhere, wait_ = Activity::kGather;
  int unit_ = -1, waits_ = 0, wait_unit_ = -1;
  Nanos wait_begin_ = 0, activity_begin_ = 0;
  std::array<Nanos, kNumActivities> sums_ = {};
  std::vector<Open> open_;
  std::vector<Span> spans_;
  bool detailed_ = true;
  struct Ended {
    Nanos end, cpu;
    std::array<Nanos, kNumActivities> sums;
    std::size_t spans;
  };
  std::optional<Ended> ended_;  // the optimizer's step has ended, and another one's may follow
  bool complete_ = false;       // no further one can follow
};

}  // namespace shoal::runtime
