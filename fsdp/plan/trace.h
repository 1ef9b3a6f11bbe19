// Plans the next step from a traced one: the hooks' events become a graph, and the graph a list of actions per hook.
//
// Compute is cut at boundaries. The first iteration records them. A plan expects them in the same order, and lists the units to unshard at
// each. A step that deviates is traced again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/graph/passes/passes.h"
#include "fsdp/graph/step_graph.h"
#include "fsdp/plan/schedule.h"

namespace shoal::fsdp {

// One event of a step: the program passed a boundary, or a node ran. Times are in microseconds since the step began.
struct TraceEvent {
  std::optional<Boundary> boundary;  // the boundary, passed at `span.start`; empty if a node ran
  Op op = Op::kUnshard;              // the communication or optimizer node that ran during `span`
  std::int32_t unit = -1;
  bool backward = false;
  Span span;
};

// A predicted trace, for a plan before the first step, made from the boundaries of the forward. The backward takes them in reverse order. A
// unit is unsharded where its forward begins, and where its backward begins if it resharded; it is reduced where its backward ends. Every
// event takes one microsecond.
std::vector<TraceEvent> expected_trace(const std::vector<Boundary>& forward, const std::vector<bool>& reshard_after_forward);

struct PlanOptions {
  Prefetch prefetch = {};
  // A unit's compute between two of its children becomes a separate node if it takes at least this share of the step's time. Above 1, no
  // duration matters, so that all ranks make the same plan: between children, only the begin of a forward or backward gets a node.
  double min_part = 0.02;
};

class Plan {
 public:
  // Builds the traced step's graph, moves its unshards ahead (prefetch), and assigns nodes to boundaries.
  static Plan from_trace(const std::vector<std::string>& units, const std::vector<TraceEvent>& trace, const PlanOptions& options);

  const StepGraph& graph() const { return graph_; }
  const std::vector<Boundary>& boundaries() const { return schedule_->boundaries; }
  // The schedule that the step machine follows in the next steps.
  std::shared_ptr<const Schedule> schedule() const { return schedule_; }
  // The compute node that begins or continues after this boundary; -1: none.
  std::int32_t compute_after(std::size_t boundary) const { return compute_after_[boundary]; }
  // The optimizer's nodes, in order; they follow the last boundary.
  const std::vector<std::int32_t>& optimizer() const { return optimizer_; }
  // Durations of the traced step's nodes, for planned times.
  const std::vector<double>& durations() const { return durations_; }

 private:
  explicit Plan(std::vector<std::string> units) : graph_(std::move(units)) {}
  // Fills this plan and `schedule` from `passed`, the traced graph after prefetch(). `durations` and `boundaries` are by node of the traced
  // graph.
  void take(Rewritten passed, const std::vector<double>& durations, const std::vector<std::size_t>& boundaries, Schedule& schedule);
  StepGraph graph_;
  std::shared_ptr<const Schedule> schedule_;
  std::vector<std::int32_t> compute_after_;
  std::vector<std::int32_t> optimizer_;
  std::vector<double> durations_;
};

}  // namespace shoal::fsdp
