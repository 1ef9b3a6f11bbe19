// How far a step that runs a graph has come, and what each lane may do next. A pure machine: whoever runs the lanes asks and tells.
//
// A lane is in order, as a stream of a GPU is: its nodes begin in the order of the graph, one after the other. And the compute lane gives
// way: a node of it begins after every node of another lane that comes before it in the graph and could begin, has begun. So what was
// written before a forward as prefetching is under way while it computes, whatever the machine's scheduler does with the threads.
// Never stuck: of all nodes that have not ended, the first one in the graph may begin or has begun.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

class Progress {
 public:
  // The graph outlives it.
  explicit Progress(const StepGraph& graph);

  // The node that this lane may begin now.
  std::optional<std::int32_t> next(Lane lane) const;
  // next(lane) begins, or what has begun ends.
  void begin(std::int32_t node);
  void end(std::int32_t node);
  bool finished(Lane lane) const { return position(lane) == nodes_of_[static_cast<std::size_t>(lane)].size(); }

 private:
  enum class State : std::uint8_t { kWaiting, kRunning, kEnded };
  std::size_t position(Lane lane) const { return position_[static_cast<std::size_t>(lane)]; }
  // The first node of a lane that has not ended, if it waits and its edges do not.
  std::optional<std::int32_t> ready(Lane lane) const;

  const StepGraph& graph_;
  std::vector<State> state_;
  std::array<std::vector<std::int32_t>, kNumLanes> nodes_of_;
  std::array<std::size_t, kNumLanes> position_{};  // how many of nodes_of_ have ended
};

}  // namespace shoal::fsdp
