// Traces a rank's steps. The first one becomes the plan, whose schedule the step machine follows. A step that passes the plan's boundaries
// measures the plan's nodes; one that deviates becomes the plan. Main thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/plan/trace.h"
#include "runtime/loop/clock.h"

namespace shoal::fsdp {

class Stepper {
 public:
  Stepper(std::vector<std::string> units, PlanOptions options, runtime::Clock& clock)
      : units_(std::move(units)), options_(std::move(options)), clock_(clock) {}

  // New options: the next step is traced again.
  void replan(PlanOptions options);
  // Begins a step. The previous step becomes the plan, or gives the times of the plan's nodes.
  void begin_step();
  // Ends the step, if one was begun: its measurements become readable.
  void end_step();
  // The program passes a boundary.
  void passed(Boundary b);
  // Records an op that ran between these times, planned or on demand.
  void ran(Op op, std::int32_t unit, bool backward, runtime::TimePoint start, runtime::TimePoint end);

  runtime::TimePoint now() const { return clock_.now(); }
  std::uint64_t steps() const { return steps_; }
  // Number of steps that deviated from their plan.
  std::uint64_t detours() const { return detours_; }

  // The plan, and the measured and planned times of the last complete step; null or empty before there is a plan.
  const Plan* plan() const { return plan_ ? &*plan_ : nullptr; }
  // The plan's schedule, or null.
  std::shared_ptr<const Schedule> schedule() const { return plan_ ? plan_->schedule() : nullptr; }
  const std::vector<Span>& measured() const { return measured_; }
  // The begin and the end of the step that is measured.
  std::pair<runtime::TimePoint, runtime::TimePoint> measured_between() const { return {measured_from_, measured_until_}; }
  std::vector<Span> planned() const;

 private:
  double since(runtime::TimePoint t) const { return std::chrono::duration<double, std::micro>(t - began_).count(); }
  bool as_planned() const;
  void measure();

  const std::vector<std::string> units_;
  PlanOptions options_;
  runtime::Clock& clock_;
  runtime::TimePoint began_{};
  std::uint64_t steps_ = 0, detours_ = 0;
  bool in_step_ = false;

  std::vector<TraceEvent> trace_;
  std::optional<Plan> plan_;
  std::vector<Span> measured_;
  runtime::TimePoint measured_from_{}, measured_until_{};
  std::vector<double> estimate_;      // by node: its expected duration
  std::vector<double> planned_from_;  // the estimate from which planned() computes times
};

}  // namespace shoal::fsdp
