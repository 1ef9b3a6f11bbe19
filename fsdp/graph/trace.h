// Plans the next step from a traced one: the hooks' events become a graph, and the graph a list of actions per hook.
//
// Compute is cut at boundaries: the begin or end of a unit's forward or backward. The first iteration records them. A plan expects them in
// the same order and lists the communication nodes for each. A step that deviates is traced again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/graph/passes/passes.h"
#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

// A point of the program: a unit's forward or backward begins or ends.
struct Boundary {
  bool backward = false;
  bool begin = false;
  std::int32_t unit = 0;
  bool operator==(const Boundary&) const = default;
};

// An event of a step, in order. Times are microseconds since the step began.
struct TraceEvent {
  std::optional<Boundary> boundary;  // at `span.start`; or
  Op op = Op::kUnshard;              // communication or optimizer node that ran during `span`
  std::int32_t unit = -1;
  bool backward = false;
  Span span;
};

// A predicted trace, for a plan before the first step, from the boundaries of the forward. The backward takes them in reverse order. Each
// unit is unsharded where it begins and reduced where its backward ends. Every node takes one microsecond.
std::vector<TraceEvent> expected_trace(const std::vector<Boundary>& forward, const std::vector<bool>& reshard_after_forward);

struct PlanOptions {
  Prefetch prefetch = {};
  // A unit's compute between two of its children becomes a separate node from this share of the step's time on.
  double min_part = 0.02;
};

class Plan {
 public:
  // Builds the traced step's graph, runs the passes, and assigns nodes to boundaries.
  static Plan from_trace(const std::vector<std::string>& units, const std::vector<TraceEvent>& trace, const PlanOptions& options);

  const StepGraph& graph() const { return graph_; }
  const std::vector<Boundary>& boundaries() const { return boundaries_; }
  // Communication nodes to run at this boundary, in order.
  const std::vector<std::int32_t>& at(std::size_t boundary) const { return at_[boundary]; }
  // The compute node that begins or continues after this boundary; -1: none.
  std::int32_t compute_after(std::size_t boundary) const { return compute_after_[boundary]; }
  // The optimizer's nodes, in order; they follow the last boundary.
  const std::vector<std::int32_t>& optimizer() const { return optimizer_; }
  // Durations of the traced step's nodes, for planned times.
  const std::vector<double>& durations() const { return durations_; }

 private:
  explicit Plan(std::vector<std::string> units) : graph_(std::move(units)) {}
  // Takes the passes' result. `durations` and `boundaries` are by node of the traced graph.
  void take(Rewritten passed, const std::vector<double>& durations, const std::vector<std::size_t>& boundaries);
  StepGraph graph_;
  std::vector<Boundary> boundaries_;
  std::vector<std::vector<std::int32_t>> at_;
  std::vector<std::int32_t> compute_after_;
  std::vector<std::int32_t> optimizer_;
  std::vector<double> durations_;
};

}  // namespace shoal::fsdp
