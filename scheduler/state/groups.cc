// Placement groups: resources that are reserved together, bundle by bundle, and given to actors later.
#include <algorithm>

#include <fmt/format.h>

#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::GroupState;
using actors::NodeState;
using actors::Resources;
using actors::Strategy;

Result<void> ClusterState::group_requested(const actors::GroupSpec& spec) {
  if (const auto known = groups_.find(spec.id); known != groups_.end() && (spec.detached || known->second.row.job == spec.job)) {
    return {};  // a repeated request, unanswered by an earlier head
  }
  if (!spec.id || groups_.contains(spec.id)) return fail(invalid_argument("placement group " + to_string(spec.id) + " exists already"));
  if (spec.bundles.empty()) return fail(invalid_argument("a placement group without bundles"));
  if (!spec.labels.empty() && spec.labels.size() != spec.bundles.size()) {
    return fail(invalid_argument("labels of bundles that are not there"));
  }
  for (const auto& bundle : spec.bundles) {
    if (bundle.empty()) return fail(invalid_argument("a bundle of a placement group asks for nothing"));
  }
  const auto job = jobs_.find(spec.job);
  if (job == jobs_.end() || ended(job->second.row.state)) return fail(not_found("no running job " + to_string(spec.job)));
  if (!spec.name.empty() && !group_names_.try_emplace({spec.name_space, spec.name}, spec.id).second) {
    return fail(invalid_argument(fmt::format("a placement group named '{}' is there already in namespace '{}'", spec.name, spec.name_space))
                    .with_reason("NameTaken")
                    .with_hint("get it with get_placement_group"));
  }
  Group& group = groups_.add(spec.id);
  group.order = next_order_++;
  group.row.id = spec.id;
  group.row.job = spec.detached ? JobId() : spec.job;
  group.row.name = spec.name;
  group.row.name_space = spec.name_space;
  group.row.strategy = spec.strategy;
  group.row.bundles = spec.bundles;
  group.row.nodes.resize(spec.bundles.size());
  group.labels = spec.labels;
  group.free.resize(spec.bundles.size());
  pending_.push_back({{}, {}, spec.id, now_});
  place_pending();
  explain_newcomer();
  return {};
}

std::vector<Resources> ClusterState::missing_bundles(const Group& group) const {
  std::vector<Resources> out;
  for (std::size_t i = 0; i < group.row.bundles.size(); ++i) {
    if (!group.row.nodes[i]) out.push_back(group.row.bundles[i]);
  }
  return out;
}

ClusterState::Asked ClusterState::asked(const Group& group, const NodeResources& room) const {
  Asked out{missing_bundles(group), Allowed(&room)};
  if (group.labels.empty()) return out;
  NodeResources labelled = room;
  std::size_t next = 0;
  for (std::size_t i = 0; i < group.labels.size(); ++i) {
    if (group.row.nodes[i]) continue;
    Resources& want = out.wants[next++];
    if (group.labels[i].empty()) continue;
    const std::string name = "labels " + to_string(group.labels[i]);
    want.set_units(name, Resources::kUnit);
    for (auto& [node, has] : labelled) {
      if (matches(nodes_.at(node).row.labels, group.labels[i])) has.set_units(name, Resources::kUnit * actors::GroupSpec::kMaxBundles);
    }
  }
  out.allowed = Allowed(std::move(labelled));
  return out;
}

// Returns true if the group has all its bundles now.
bool ClusterState::place_group(GroupId id) {
  const Group& waiting = groups_.at(id);
  const auto [wants, allowed] = asked(waiting, resource_index().free());
  NodeResources apart;
  const bool some_are_placed = std::any_of(waiting.row.nodes.begin(), waiting.row.nodes.end(), [](NodeId n) { return bool(n); });
  const bool keep_apart = waiting.row.strategy == Strategy::kStrictSpread && some_are_placed;
  if (keep_apart) {
    apart = *allowed;
    for (const NodeId n : waiting.row.nodes) apart.erase(n);
  }
  const bool by_load = waiting.row.strategy == Strategy::kSpread;
  const auto nodes = place(wants, keep_apart ? apart : *allowed, waiting.row.strategy, by_load ? load() : Load());
  if (!nodes) return false;
  Group& group = groups_.edit(id);
  auto next = nodes->begin();
  for (std::size_t i = 0; i < group.row.bundles.size(); ++i) {
    if (group.row.nodes[i]) continue;
    group.row.nodes[i] = *next++;
    group.free[i] = group.row.bundles[i];
    nodes_.scratch(group.row.nodes[i]).row.available -= group.row.bundles[i];
    shares_.takes(group.row.job, group.row.bundles[i]);
  }
  group.row.state = GroupState::kCreated;
  group.row.pending_reason.clear();
  act(NotifyGroup{group.row});
  return true;
}

void ClusterState::group_removed(GroupId id) {
  const auto it = groups_.find(id);
  if (it == groups_.end() || it->second.row.state == GroupState::kRemoved) return;
  std::erase_if(pending_, [&](const Pending& p) { return p.group == id; });
  remove_group(groups_.edit(id), cancelled("its placement group was removed").with_reason("GroupRemoved"));
  place_pending();
}

// The caller removes the group's own entry from pending_.
void ClusterState::remove_group(Group& group, const Error& cause) {
  if (group.row.state == GroupState::kRemoved) return;
  group.row.state = GroupState::kRemoved;
  group.row.cause = cause;
  for (std::size_t i = 0; i < group.row.nodes.size(); ++i) {
    if (!group.row.nodes[i]) continue;
    nodes_.scratch(group.row.nodes[i]).row.available += std::exchange(group.free[i], {});
    shares_.gives(group.row.job, group.row.bundles[i]);
  }
  if (const auto named = group_names_.find({group.row.name_space, group.row.name});
      named != group_names_.end() && named->second == group.row.id) {
    group_names_.erase(named);
  }
  std::vector<ActorId> living;
  for (const auto& [id, gang] : gangs_) {
    if (gang.spec.where.group != group.row.id) continue;
    for (const auto& a : gang.spec.actors) {
      const auto row = actors_.find(a.id);  // no row for a member that died long ago
      if (row != actors_.end() && row->second.state != ActorState::kDead) living.push_back(a.id);
    }
  }
  for (const ActorId id : living) {
    const auto it = actors_.find(id);
    if (it != actors_.end() && it->second.state != ActorState::kDead) end_actor(actors_.edit(id), cause);
  }
  removed_groups_.push_back(group.row.id);
  act(NotifyGroup{group.row});
}

// Called after the node's workers have exited and returned what they held of its bundles.
void ClusterState::lose_bundles(NodeId node) {
  for (const auto& [id, known] : groups_) {
    const auto& on = known.row.nodes;
    if (known.row.state == GroupState::kRemoved || std::find(on.begin(), on.end(), node) == on.end()) continue;
    Group& group = groups_.edit(id);
    for (std::size_t i = 0; i < group.row.nodes.size(); ++i) {
      if (group.row.nodes[i] != node) continue;
      nodes_.scratch(node).row.available += std::exchange(group.free[i], {});
      shares_.gives(group.row.job, group.row.bundles[i]);
      group.row.nodes[i] = {};
    }
    if (group.row.state == GroupState::kCreated) pending_.push_back({{}, {}, id, now_});
    group.row.state = GroupState::kRescheduling;
    act(NotifyGroup{group.row});
  }
}

std::optional<std::vector<ClusterState::Site>> ClusterState::place_in_group(const Gang& gang, const Group& group) const {
  if (group.row.state != GroupState::kCreated) return std::nullopt;
  auto free = group.free;
  std::vector<Site> out;
  for (const auto& want : gang.wants) {
    const auto first = static_cast<std::size_t>(std::max(gang.spec.where.bundle, 0));
    const std::size_t end = gang.spec.where.bundle < 0 ? free.size() : first + 1;
    std::size_t chosen = first;
    while (chosen < end && (!want.fits_in(free[chosen]) || !takes_work(nodes_.at(group.row.nodes[chosen])))) ++chosen;
    if (chosen == end) return std::nullopt;
    free[chosen] -= want;
    out.push_back({group.row.nodes[chosen], static_cast<std::int32_t>(chosen)});
  }
  return out;
}

Result<void> ClusterState::check_where(const Gang& gang) const {
  const auto& where = gang.spec.where;
  if (where.group) {
    const auto it = groups_.find(where.group);
    if (it == groups_.end() || it->second.row.state == GroupState::kRemoved) {
      return fail(not_found("no placement group " + to_string(where.group) + "; it was removed, or never was").with_reason("GroupRemoved"));
    }
    const auto& bundles = it->second.row.bundles;
    if (where.bundle < -1 || where.bundle >= static_cast<std::int32_t>(bundles.size())) {
      return fail(invalid_argument(fmt::format("bundle {} of a placement group with {}", where.bundle, bundles.size())));
    }
    for (const auto& want : gang.wants) {
      const auto holds = [&](const Resources& bundle) { return want.fits_in(bundle); };
      const bool any =
          where.bundle < 0 ? std::any_of(bundles.begin(), bundles.end(), holds) : holds(bundles[static_cast<std::size_t>(where.bundle)]);
      if (!any)
        return fail(invalid_argument(fmt::format("{} cannot fit into {} of the placement group", want.to_string(),
                                                 where.bundle < 0 ? "any bundle" : fmt::format("bundle {}", where.bundle))));
    }
    return {};
  }
  if (!where.node || where.soft) return {};
  const auto unschedulable = [](const std::string& why) {
    return fail(resource_exhausted(why).with_reason("Unschedulable").with_hint("name a living node that can hold it, or pass soft=True"));
  };
  const auto node = nodes_.find(where.node);
  if (node == nodes_.end() || node->second.row.state != NodeState::kAlive) {
    return unschedulable("the node that it has to be on is not there: " + to_string(where.node));
  }
  const Allowed could = only(resource_index().capacity(), where, gang.wants);
  if (!place(gang.wants, *could)) return unschedulable("the node that it has to be on could never hold it: " + explain(gang.wants, *could));
  return {};
}

const actors::GroupRow* ClusterState::group(GroupId id) const {
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : &it->second.row;
}

Result<actors::GroupRow> ClusterState::find_group(const actors::FindActor& request) const {
  const auto it = group_names_.find({request.name_space, request.name});
  if (it == group_names_.end()) {
    return fail(not_found(fmt::format("no placement group is named '{}' in namespace '{}'", request.name, request.name_space))
                    .with_reason("NoSuchName"));
  }
  return groups_.at(it->second).row;
}

}  // namespace shoal::scheduler
