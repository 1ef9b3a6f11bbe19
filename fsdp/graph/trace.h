// From a step that ran to the plan of the next: what the hooks saw, as a graph, and that graph as a list of what to do at each hook.
//
// Compute is cut at boundaries: a unit's forward or backward begins or ends. The first iteration records them; a plan expects them again,
// in the same order, and says which communication nodes run at each. A step that takes another way is traced anew.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/graph/passes/passes.h"
#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

struct Boundary {
  bool backward = false;
  bool begin = false;
  std::int32_t unit = 0;
  bool operator==(const Boundary&) const = default;
};

// What happened, in order. Times are microseconds since the step began.
struct TraceEvent {
  std::optional<Boundary> boundary;  // at `span.start`; or
  Op op = Op::kUnshard;              // a communication or optimizer node that ran during `span`
  std::int32_t unit = -1;
  bool backward = false;
  Span span;
};

// What a step will look like whose forward takes these boundaries: backward takes them from the last to the first, each unit is unsharded
// where it begins, and reduced where its backward ends. Every node takes one microsecond. For a plan before the first step.
std::vector<TraceEvent> expected_trace(const std::vector<Boundary>& forward, const std::vector<bool>& reshard_after_forward);

struct PlanOptions {
  Prefetch prefetch = {};
  // A unit's part between two of its children is a node of its own when it takes this share of the step.
  double min_part = 0.02;
};

class Plan {
 public:
  // The graph of a traced step, its passes, and what to do at each boundary.
  static Plan from_trace(const std::vector<std::string>& units, const std::vector<TraceEvent>& trace, const PlanOptions& options);

  const StepGraph& graph() const { return graph_; }
  const std::vector<Boundary>& boundaries() const { return boundaries_; }
  // Communication nodes that run at this boundary, in order.
  const std::vector<std::int32_t>& at(std::size_t boundary) const { return at_[boundary]; }
  // The compute node that begins, or goes on, after this boundary; -1: none.
  std::int32_t compute_after(std::size_t boundary) const { return compute_after_[boundary]; }
  // The optimizer's nodes, in order: they follow the last boundary.
  const std::vector<std::int32_t>& optimizer() const { return optimizer_; }
  // How long the traced step's nodes took: what planned times are made of.
  const std::vector<double>& durations() const { return durations_; }

 private:
  explicit Plan(std::vector<std::string> units) : graph_(std::move(units)) {}
  // The passes' result; of each node of the traced graph its duration and its boundary.
  void take(Rewritten passed, const std::vector<double>& durations, const std::vector<std::size_t>& boundaries);
  StepGraph graph_;
  std::vector<Boundary> boundaries_;
  std::vector<std::vector<std::int32_t>> at_;
  std::vector<std::int32_t> compute_after_;
  std::vector<std::int32_t> optimizer_;
  std::vector<double> durations_;
};

}  // namespace shoal::fsdp
