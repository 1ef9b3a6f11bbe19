#include "fsdp/graph/progress.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace shoal::fsdp {

Progress::Progress(const StepGraph& graph) : graph_(graph), state_(graph.nodes().size(), State::kWaiting) {
  for (const auto& n : graph.nodes()) nodes_of_[static_cast<std::size_t>(lane_of(n.op))].push_back(n.id);
}

std::optional<std::int32_t> Progress::ready(Lane lane) const {
  if (finished(lane)) return std::nullopt;
  const auto id = nodes_of_[static_cast<std::size_t>(lane)][position(lane)];
  if (state_[static_cast<std::size_t>(id)] != State::kWaiting) return std::nullopt;
  const auto& after = graph_.nodes()[static_cast<std::size_t>(id)].after;
  const bool free =
      std::all_of(after.begin(), after.end(), [&](const Edge& e) { return state_[static_cast<std::size_t>(e.from)] == State::kEnded; });
  return free ? std::optional(id) : std::nullopt;
}

std::optional<std::int32_t> Progress::next(Lane lane) const {
  const auto id = ready(lane);
  if (!id || lane != Lane::kCompute) return id;
  for (const auto other : {Lane::kCommunication, Lane::kHostCopy}) {
    if (const auto earlier = ready(other); earlier && *earlier < *id) return std::nullopt;
  }
  return id;
}

std::optional<std::int32_t> Progress::awaited(Lane lane) const {
  const auto ended = [&](std::int32_t id) { return state_[static_cast<std::size_t>(id)] == State::kEnded; };
  if (finished(lane)) {
    const auto first = std::find_if(graph_.nodes().begin(), graph_.nodes().end(), [&](const Node& n) { return !ended(n.id); });
    return first == graph_.nodes().end() ? std::nullopt : std::optional(first->id);
  }
  const auto id = nodes_of_[static_cast<std::size_t>(lane)][position(lane)];
  const auto& after = graph_.nodes()[static_cast<std::size_t>(id)].after;
  const auto edge = std::find_if(after.begin(), after.end(), [&](const Edge& e) { return !ended(e.from); });
  return edge == after.end() ? std::nullopt : std::optional(edge->from);
}

void Progress::begin(std::int32_t node) {
  SHOAL_CHECK(ready(lane_of(graph_.nodes()[static_cast<std::size_t>(node)].op)) == node,
              "the node that begins is not the next of its lane");
  state_[static_cast<std::size_t>(node)] = State::kRunning;
}

void Progress::end(std::int32_t node) {
  SHOAL_CHECK(state_[static_cast<std::size_t>(node)] == State::kRunning, "the node that ends has not begun");
  state_[static_cast<std::size_t>(node)] = State::kEnded;
  ++position_[static_cast<std::size_t>(lane_of(graph_.nodes()[static_cast<std::size_t>(node)].op))];
}

}  // namespace shoal::fsdp
