#include "fsdp/step/simulated/collectives.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

std::size_t SimulatedCollectives::issue(Kind kind, Place place) {
  issued_.push_back({kind, place});
  return issued_.size();
}

std::string SimulatedCollectives::begin_gather(Place place, std::uint64_t version) {
  if (gathering_.contains(place)) return "a gather begins although it is under way";
  if (shown_.contains(place)) return "a gather begins although its parameters are whole";
  gathering_[place] = {issue(Kind::kGather, place), version};
  return "";
}

std::string SimulatedCollectives::drop_gather(Place place) {
  return gathering_.erase(place) == 1 ? "" : "a gather is dropped that is not under way";
}

std::string SimulatedCollectives::show(Place place, std::uint64_t version) {
  if (const auto shown = shown_.find(place); shown != shown_.end())
    return shown->second == version ? "" : "parameters of an earlier version are shown again";
  const auto found = gathering_.find(place);
  if (found == gathering_.end()) return "parameters are shown that no gather brings";
  const std::uint64_t of = found->second.version;
  gathering_.erase(found);
  shown_[place] = version;
  return of == version ? "" : "a gather has outlived a write";
}

bool SimulatedCollectives::is_shown(Place place, std::uint64_t version) const {
  const auto found = shown_.find(place);
  return found != shown_.end() && found->second == version;
}

std::string SimulatedCollectives::begin_reduce(Place place, bool to_replicas, std::size_t inputs) {
  reducing_.push_back({place, issue(Kind::kReduceShards, place), to_replicas});
  const auto held = std::count_if(reducing_.begin(), reducing_.end(), [](const Reducing& r) { return !r.among_replicas; });
  return static_cast<std::size_t>(held) <= inputs ? "" : "more reductions hold their inputs than the program allows";
}

std::string SimulatedCollectives::reduce_replicas(Place place) {
  const auto found =
      std::find_if(reducing_.begin(), reducing_.end(), [&](const Reducing& r) { return r.place == place && !r.among_replicas; });
  if (found == reducing_.end() || !found->to_replicas) return "a reduction over replicas follows none over shards";
  found->among_replicas = true;
  found->number = issue(Kind::kReduceReplicas, place);
  return "";
}

std::string SimulatedCollectives::finish_reduce(Place place) {
  const auto found = std::find_if(reducing_.begin(), reducing_.end(), [&](const Reducing& r) { return r.place == place; });
  if (found == reducing_.end()) return "a reduction is finished that is not under way";
  const bool complete = found->among_replicas == found->to_replicas;
  reducing_.erase(found);
  return complete ? "" : "a reduction is finished without its replicas";
}

std::string SimulatedCollectives::end_pass() const { return reducing_.empty() ? "" : "a pass ends while a reduction is under way"; }

std::size_t SimulatedCollectives::needed(const Action& a) const {
  const Place place{a.unit, a.group};
  if (a.kind == Action::Kind::kShow && a.view == View::kUnsharded) {
    std::size_t most = 0;
    for (const auto& [of, gathering] : gathering_) {
      if (of.first == a.unit) most = std::max(most, gathering.number);
    }
    return most;
  }
  if (a.kind == Action::Kind::kDropGather) {
    const auto found = gathering_.find(place);
    return found == gathering_.end() ? 0 : found->second.number;
  }
  if (a.kind != Action::Kind::kFinishReduce && a.kind != Action::Kind::kReduceReplicas) return 0;
  const auto found = std::find_if(reducing_.begin(), reducing_.end(), [&](const Reducing& r) { return r.place == place; });
  return found == reducing_.end() ? 0 : found->number;
}

std::string SimulatedCollectives::differs(const SimulatedCollectives& other) const {
  const auto [mine, theirs] = std::mismatch(issued_.begin(), issued_.end(), other.issued_.begin(), other.issued_.end());
  if (mine == issued_.end() || theirs == other.issued_.end()) return "";
  constexpr const char* kKinds[] = {"a gather", "a reduction over shards", "a reduction over replicas"};
  const auto text = [&](const Issue& i) { return fmt::format("{} of unit {}", kKinds[static_cast<std::size_t>(i.kind)], i.place.first); };
  return fmt::format("collective {} is {}, and {} on another rank", mine - issued_.begin(), text(*mine), text(*theirs));
}

}  // namespace shoal::fsdp
