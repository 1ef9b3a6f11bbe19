// The progress of a running step, and the next node of each lane. A pure state machine: the lanes call it.
//
// Each lane is in order, like a GPU stream: its nodes run one after the other in the order of the graph. The compute lane gives way: its
// node begins only after every runnable node of another lane before it in the graph has begun. So a prefetch that comes before a forward
// runs while the forward computes, regardless of the OS scheduler.
//
// No deadlock: the first node of the graph that has not ended may begin or has begun.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

class Progress {
 public:
  // `graph` outlives this object.
  explicit Progress(const StepGraph& graph);

  // The node that this lane may begin now; empty when it has to wait.
  std::optional<std::int32_t> next(Lane lane) const;
  // The node whose end this lane's next node has to await; empty if there is none. Once all nodes of the lane have ended: the first node of
  // the step that has not ended.
  std::optional<std::int32_t> awaited(Lane lane) const;
  // begin() is for the result of next(lane), end() for a node that has begun.
  void begin(std::int32_t node);
  void end(std::int32_t node);
  bool finished(Lane lane) const { return position(lane) == nodes_of_[static_cast<std::size_t>(lane)].size(); }

 private:
  enum class State : std::uint8_t { kWaiting, kRunning, kEnded };
  std::size_t position(Lane lane) const { return position_[static_cast<std::size_t>(lane)]; }
  // The lane's first node that has not ended, if it has not begun and its edges are satisfied.
  std::optional<std::int32_t> ready(Lane lane) const;

  const StepGraph& graph_;
  std::vector<State> state_;
  std::array<std::vector<std::int32_t>, kNumLanes> nodes_of_;
  std::array<std::size_t, kNumLanes> position_{};  // number of ended nodes in nodes_of_
};

}  // namespace shoal::fsdp
