#include "scheduler/state/tables/group_table.h"

#include <utility>

#include <fmt/format.h>

namespace shoal::scheduler {

using actors::GroupState;
using actors::Resources;
using rows::Group;

std::vector<Resources> missing_bundles(const Group& group) {
  std::vector<Resources> out;
  for (std::size_t i = 0; i < group.row.bundles.size(); ++i) {
    if (!group.row.nodes[i]) out.push_back(group.row.bundles[i]);
  }
  return out;
}

const Group* GroupTable::living(GroupId id) const {
  const auto it = find(id);
  return it == end() || it->second.row.state == GroupState::kRemoved ? nullptr : &it->second;
}

const Group* GroupTable::named(const std::string& name_space, const std::string& name) const {
  const auto it = names_.find({name_space, name});
  return it == names_.end() ? nullptr : &at(it->second);
}

Result<void> GroupTable::request(const actors::GroupSpec& spec, std::uint64_t order) {
  if (!spec.name.empty() && !names_.try_emplace({spec.name_space, spec.name}, spec.id).second) {
    return fail(invalid_argument(fmt::format("a placement group named '{}' is there already in namespace '{}'", spec.name, spec.name_space))
                    .with_reason("NameTaken")
                    .with_hint("get it with get_placement_group"));
  }
  Group& group = add(spec.id);
  group.order = order;
  group.row.id = spec.id;
  group.row.job = spec.detached ? JobId() : spec.job;
  group.row.name = spec.name;
  group.row.name_space = spec.name_space;
  group.row.strategy = spec.strategy;
  group.row.bundles = spec.bundles;
  group.row.nodes.resize(spec.bundles.size());
  group.labels = spec.labels;
  group.together = spec.together;
  group.free.resize(spec.bundles.size());
  return {};
}

std::vector<GroupTable::Bundle> GroupTable::reserve(GroupId id, const std::vector<NodeId>& nodes) {
  Group& group = edit(id);
  std::vector<Bundle> out;
  for (std::size_t i = 0; i < group.row.bundles.size(); ++i) {
    if (group.row.nodes[i]) continue;
    group.row.nodes[i] = nodes.at(out.size());
    group.free[i] = group.row.bundles[i];
    out.push_back({group.row.nodes[i], group.row.bundles[i], group.free[i]});
  }
  group.row.state = GroupState::kCreated;
  group.row.pending_reason.clear();
  return out;
}

std::vector<GroupTable::Bundle> GroupTable::lose(GroupId id, NodeId node) {
  Group& group = edit(id);
  std::vector<Bundle> out;
  for (std::size_t i = 0; i < group.row.nodes.size(); ++i) {
    if (group.row.nodes[i] != node) continue;
    out.push_back({node, group.row.bundles[i], std::exchange(group.free[i], {})});
    group.row.nodes[i] = {};
  }
  group.row.state = GroupState::kRescheduling;
  return out;
}

std::vector<GroupTable::Bundle> GroupTable::remove(GroupId id, const Error& cause) {
  Group& group = edit(id);
  group.row.state = GroupState::kRemoved;
  group.row.pending_reason.clear();
  group.row.cause = cause;
  std::vector<Bundle> out;
  for (std::size_t i = 0; i < group.row.nodes.size(); ++i) {
    if (group.row.nodes[i]) out.push_back({group.row.nodes[i], group.row.bundles[i], std::exchange(group.free[i], {})});
  }
  if (const auto name = names_.find({group.row.name_space, group.row.name}); name != names_.end() && name->second == id) names_.erase(name);
  removed_.push_back(id);
  return out;
}

void GroupTable::explain(GroupId id, const std::string& why) {
  if (at(id).row.pending_reason != why) edit(id).row.pending_reason = why;
}

std::vector<GroupTable::Bundle> GroupTable::restored(GroupId id) {
  Group& group = scratch(id);
  group.free.resize(group.row.bundles.size());
  std::vector<Bundle> out;
  if (group.row.state == GroupState::kRemoved) {
    removed_.push_back(id);
    return out;
  }
  if (!group.row.name.empty()) names_[{group.row.name_space, group.row.name}] = id;
  for (std::size_t i = 0; i < group.row.nodes.size(); ++i) {
    if (!group.row.nodes[i]) continue;
    group.free[i] = group.row.bundles[i];
    out.push_back({group.row.nodes[i], group.row.bundles[i], group.row.bundles[i]});
  }
  return out;
}

void GroupTable::forget_old(std::size_t max) {
  for (; removed_.size() > max; removed_.pop_front()) erase(removed_.front());
}

}  // namespace shoal::scheduler
