// Keeps a rank's program and its plan together: traces the first step, follows the plan from the second on, traces anew when the program
// takes another way. Main thread only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/graph/trace.h"
#include "runtime/loop/clock.h"

namespace shoal::fsdp {

class Stepper {
 public:
  Stepper(std::vector<std::string> units, PlanOptions options, runtime::Clock& clock)
      : units_(std::move(units)), options_(std::move(options)), clock_(clock) {}

  // Other options from the next step on: that one is traced anew.
  void replan(PlanOptions options);
  // A new step: what the last one did becomes, or confirms, the plan.
  void begin_step();
  // The step is over, if one was begun: what it did can be looked at.
  void end_step();
  // The program is at a boundary. Returns the communication nodes that the plan wants now; none while tracing.
  const std::vector<std::int32_t>& boundary(Boundary b);
  // Something ran between these times: by the plan's word or on demand.
  void ran(Op op, std::int32_t unit, bool backward, runtime::TimePoint start, runtime::TimePoint end);

  runtime::TimePoint now() const { return clock_.now(); }
  bool following() const { return following_; }
  std::uint64_t steps() const { return steps_; }
  // How often the program took another way than its plan.
  std::uint64_t detours() const { return detours_; }

  // Of the last complete step; nothing before there is a plan.
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
  std::size_t passed_ = 0;  // boundaries in this step
  std::optional<Plan> plan_;
  std::map<std::tuple<Op, std::int32_t, bool>, std::vector<std::int32_t>> nodes_of_;
  std::map<std::tuple<Op, std::int32_t, bool>, std::size_t> seen_;
  std::vector<Span> measured_, last_measured_;
  std::vector<double> estimate_;      // of each node's duration: what planned times are made of
  std::vector<double> planned_from_;  // the estimate that the last complete step was planned with
  std::int32_t computing_ = -1;
  const std::vector<std::int32_t> nothing_;
};

}  // namespace shoal::fsdp
