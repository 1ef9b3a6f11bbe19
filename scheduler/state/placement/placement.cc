#include "scheduler/state/placement/placement.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler {

using actors::Resources;
using actors::Strategy;

namespace {

using Wants = std::vector<Resources>;
using Placed = std::optional<std::vector<NodeId>>;

Resources sum_of(const Wants& wants) {
  Resources out;
  for (const auto& w : wants) out += w;
  return out;
}

Placed on_one(const Wants& wants, const NodeResources& room) {
  const Resources all = sum_of(wants);
  for (const auto& [node, has] : room) {
    if (all.fits_in(has)) return std::vector<NodeId>(wants.size(), node);
  }
  return std::nullopt;
}

// Free resources by node, less the amounts that place() has taken so far.
class Left {
 public:
  explicit Left(const NodeResources& room) : room_(room) {}
  const Resources& free_on(const NodeResources::value_type& node) const {
    const auto it = changed_.find(node.first);
    return it == changed_.end() ? node.second : it->second;
  }
  void take(const NodeResources::value_type& node, const Resources& want) {
    changed_.try_emplace(node.first, node.second).first->second -= want;
  }
  auto begin() const { return room_.begin(); }
  auto end() const { return room_.end(); }

 private:
  const NodeResources& room_;
  NodeResources changed_;
};

Placed packed(const Wants& wants, const NodeResources& room) {
  std::vector<NodeId> out;
  Left left(room);
  auto last = room.end();
  for (const auto& want : wants) {
    auto chosen = last != room.end() && want.fits_in(left.free_on(*last)) ? last : room.begin();
    while (chosen != room.end() && !want.fits_in(left.free_on(*chosen))) ++chosen;
    if (chosen == room.end()) return std::nullopt;
    left.take(*chosen, want);
    out.push_back(chosen->first);
    last = chosen;
  }
  return out;
}

// Packs the largest wants first. Called when packing in the order of ranks has failed.
Placed packed_by_size(const Wants& wants, const NodeResources& room) {
  std::vector<std::size_t> order(wants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto size = [&](std::size_t i) {
    std::vector<std::int64_t> out;
    for (const auto& [name, units] : wants[i].all()) {
      if (name != "memory") out.push_back(units);
    }
    std::sort(out.rbegin(), out.rend());
    return out;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return size(a) > size(b); });
  Wants sorted;
  for (const std::size_t i : order) sorted.push_back(wants[i]);
  const auto nodes = packed(sorted, room);
  if (!nodes) return std::nullopt;
  std::vector<NodeId> out(wants.size());
  for (std::size_t k = 0; k < order.size(); ++k) out[order[k]] = (*nodes)[k];
  return out;
}

Placed spread(const Wants& wants, const NodeResources& room, const Load& load) {
  std::vector<NodeId> out;
  Left left(room);
  Load mine;
  for (const auto& want : wants) {
    auto chosen = room.end();
    std::pair<std::size_t, std::size_t> least;
    for (auto it = room.begin(); it != room.end(); ++it) {
      if (!want.fits_in(left.free_on(*it))) continue;
      const auto there = load.find(it->first);
      const auto already = mine.find(it->first);
      const std::pair<std::size_t, std::size_t> loads = {already == mine.end() ? 0 : already->second,
                                                         there == load.end() ? 0 : there->second};
      if (chosen != room.end() && least <= loads) continue;
      chosen = it;
      least = loads;
    }
    if (chosen == room.end()) return std::nullopt;
    left.take(*chosen, want);
    ++mine[chosen->first];
    out.push_back(chosen->first);
  }
  return out;
}

// Gives each want a node of its own: a bipartite matching, by augmenting paths.
Placed apart(const Wants& wants, const NodeResources& room) {
  std::map<NodeId, std::size_t> taken;  // index of the want that has the node
  struct Search {
    const Wants& wants;
    const NodeResources& room;
    std::map<NodeId, std::size_t>& taken;
    std::map<NodeId, bool> seen;
    bool give(std::size_t want) {
      for (const auto& [node, has] : room) {
        if (!wants[want].fits_in(has) || std::exchange(seen[node], true)) continue;
        const auto holder = taken.find(node);
        if (holder != taken.end() && !give(holder->second)) continue;
        taken[node] = want;
        return true;
      }
      return false;
    }
  };
  if (wants.size() > room.size()) return std::nullopt;
  for (std::size_t i = 0; i < wants.size(); ++i) {
    if (!Search{wants, room, taken, {}}.give(i)) return std::nullopt;
  }
  std::vector<NodeId> out(wants.size());
  for (const auto& [node, want] : taken) out[want] = node;
  return out;
}

// The part of `want` that is not free: "CPU 2 (1 of 4 free)".
std::string in_use(const Resources& want, const Resources& free, const Resources& whole) {
  std::string out;
  const auto amount = [](const std::string& name, std::int64_t units) {  // the amount alone, without its resource's name
    Resources one;
    one.set_units(name, std::max<std::int64_t>(0, units));  // negative if lent CPUs are in use twice
    return one.empty() ? "0" : one.to_string().substr(name.size() + 1);
  };
  for (const auto& [name, units] : want.all()) {
    if (units <= free.units(name)) continue;
    out += fmt::format("{}{} {} ({} of {} free)", out.empty() ? "" : ", ", name, amount(name, units), amount(name, free.units(name)),
                       amount(name, whole.units(name)));
  }
  return out;
}

}  // namespace

std::optional<std::vector<NodeId>> place(const std::vector<Resources>& wants, const NodeResources& room, Strategy strategy,
                                         const Load& load) {
  switch (strategy) {
    case Strategy::kPack: {
      if (wants.size() > 1) {
        if (auto out = on_one(wants, room)) return out;
      }
      if (auto out = packed(wants, room)) return out;
      if (wants.size() == 1) return std::nullopt;
      return packed_by_size(wants, room);
    }
    case Strategy::kStrictPack:
      return on_one(wants, room);
    case Strategy::kSpread:
      if (auto out = spread(wants, room, load)) return out;
      return packed(wants, room);
    case Strategy::kStrictSpread:
      return apart(wants, room);
  }
  return std::nullopt;
}

bool matches(const std::map<std::string, std::string>& labels, const std::vector<actors::LabelMatch>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& m) {
    const auto it = labels.find(m.label);
    const bool is = it != labels.end() && (m.values.empty() || std::find(m.values.begin(), m.values.end(), it->second) != m.values.end());
    return is != m.negated;
  });
}

std::string to_string(const std::vector<actors::LabelMatch>& wanted) {
  const auto text = [](const std::vector<std::string>& values) { return fmt::format("{}", fmt::join(values, "|")); };
  std::string out;
  for (const auto& m : wanted) {
    out += fmt::format("{}{}{}{}", out.empty() ? "" : ", ", m.label, m.negated ? "!=" : "=", m.values.empty() ? "*" : text(m.values));
  }
  return out;
}

std::string busy(const std::string& why) { return "waits for others to end, then starts by itself: " + why; }

std::string impossible(const std::string& why) {
  return "can never start on the nodes that there are: " + why +
         ". Add a node that can hold it (shoal start --address ..), or ask for less";
}

Error infeasible(const std::string& why) {
  return resource_exhausted("no node of the cluster could ever hold it: " + why)
      .with_reason("Infeasible")
      .with_hint("ask for less, add a node (shoal start --address HOST:PORT), or wait for one with --wait");
}

std::string explain(const std::vector<Resources>& given, const NodeResources& room, Strategy strategy, const NodeResources* whole) {
  if (room.empty()) return "there is no node";
  const Wants wants = strategy == Strategy::kStrictPack ? Wants{sum_of(given)} : given;
  if (strategy == Strategy::kStrictSpread && wants.size() > room.size()) {
    return fmt::format("needs {} nodes, each with {}; there are {}", wants.size(), wants[0].to_string(), room.size());
  }
  // Reports the first want that no node holds after those before it were placed.
  Left left(room);
  for (std::size_t i = 0; i < wants.size(); ++i) {
    const Resources& want = wants[i];
    const auto fits = std::find_if(left.begin(), left.end(), [&](const auto& node) { return want.fits_in(left.free_on(node)); });
    if (fits != left.end()) {
      left.take(*fits, want);
      continue;
    }
    const NodeResources::value_type* nearest = nullptr;
    std::size_t fewest = ~std::size_t{0};
    for (const auto& node : left) {
      std::size_t lacking = 0;
      for (const auto& [name, units] : want.all()) lacking += units > left.free_on(node).units(name);
      if (lacking < fewest) {
        fewest = lacking;
        nearest = &node;
      }
    }
    const std::string which = strategy == Strategy::kStrictPack ? " on one node"
                              : wants.size() > 1                ? fmt::format(" (number {} of {})", i + 1, wants.size())
                                                                : "";
    return fmt::format(
        "needs {}{}; nearest fit: node {} lacks {}", want.to_string(), which, to_string(nearest->first),
        whole == nullptr ? want.missing_in(left.free_on(*nearest)) : in_use(want, left.free_on(*nearest), whole->at(nearest->first)));
  }
  return strategy == Strategy::kStrictSpread ? "needs a node of its own for each, and too few have room" : "fits";
}

}  // namespace shoal::scheduler
