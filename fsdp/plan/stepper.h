// Matches a rank's program with its plan: traces the first step, follows the plan from the second on, and traces again when the program
// deviates. Main thread only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
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
  // Begins a step. The previous step becomes the plan, or confirms it.
  void begin_step();
  // Ends the step, if one was begun: its measurements become readable.
  void end_step();
  // Called when the program passes a boundary. Returns the communication nodes that the plan runs there; none while tracing.
  const std::vector<std::int32_t>& boundary(Boundary b);
  // Records an op that ran between these times, planned or on demand.
  void ran(Op op, std::int32_t unit, bool backward, runtime::TimePoint start, runtime::TimePoint end);

  runtime::TimePoint now() const { return clock_.now(); }
  bool following() const { return following_; }
  std::uint64_t steps() const { return steps_; }
  // Number of steps that deviated from their plan.
  std::uint64_t detours() const { return detours_; }

  // The plan, and the measured and planned times of the last complete step; null or empty before there is a plan.
  const Plan* plan() const { return plan_ ? &*plan_ : nullptr; }
  const std::vector<Span>& measured() const { return last_measured_; }
  std::vector<Span> planned() const;

 private:
  double since(runtime::TimePoint t) const { return std::chrono::duration<double, std::micro>(t - began_).count(); }
  void end_compute(double at);
  void index_nodes();

  const std::vector<std::string> units_;
  PlanOptions options_;
  runtime::Clock& clock_;
  runtime::TimePoint began_{};
  std::uint64_t steps_ = 0, detours_ = 0;
  bool in_step_ = false;
  bool following_ = false;

  std::vector<TraceEvent> trace_;
  std::size_t passed_ = 0;  // boundaries passed in this step
  std::optional<Plan> plan_;
  std::map<std::tuple<Op, std::int32_t, bool>, std::vector<std::int32_t>> nodes_of_;
  std::map<std::tuple<Op, std::int32_t, bool>, std::size_t> seen_;
  std::vector<Span> measured_, last_measured_;
  std::vector<double> estimate_;      // by node: its expected duration
  std::vector<double> planned_from_;  // the estimate from which planned() computes times
  std::int32_t computing_ = -1;
  const std::vector<std::int32_t> nothing_;
};

}  // namespace shoal::fsdp
