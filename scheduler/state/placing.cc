#include "scheduler/state/placing.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"

namespace shoal::scheduler {

using actors::GroupState;
using actors::Launch;
using actors::NodeState;
using actors::Resources;
using actors::Strategy;
using rows::Gang;
using rows::Group;
using rows::Job;
using rows::Worker;

namespace {

// The node of the process that asked for the gang; id 0 if it is unknown.
NodeId home_of(const Parts& s, const Gang& gang) {
  const auto job = s.jobs.find(gang.spec.job);
  for (const WorkerId id : {gang.spec.creator, job == s.jobs.end() ? WorkerId() : job->second.driver}) {
    if (const auto w = s.workers.find(id); w != s.workers.end()) return w->second.row.node;
  }
  return {};
}

std::optional<std::vector<Site>> place_in_group(const Parts& s, const Gang& gang, const Group& group) {
  if (group.row.state != GroupState::kCreated) return std::nullopt;
  auto free = group.free;
  std::vector<Site> out;
  for (const auto& want : gang.wants) {
    const auto first = static_cast<std::size_t>(std::max(gang.spec.where.bundle, 0));
    const std::size_t end = gang.spec.where.bundle < 0 ? free.size() : first + 1;
    std::size_t chosen = first;
    while (chosen < end && (!want.fits_in(free[chosen]) || !takes_work(s.nodes.at(group.row.nodes[chosen])))) ++chosen;
    if (chosen == end) return std::nullopt;
    free[chosen] -= want;
    out.push_back({group.row.nodes[chosen], static_cast<std::int32_t>(chosen)});
  }
  return out;
}

std::optional<std::vector<Site>> place_gang(const Parts& s, const Gang& gang) {
  const auto& where = gang.spec.where;
  if (where.group) return place_in_group(s, gang, s.groups.at(where.group));
  const bool light = gang.wants.size() == 1 && gang.wants[0].empty();
  if (light && !where.node && where.labels.empty() && where.prefers.empty()) {
    if (const auto node = s.nodes.index().quietest(home_of(s, gang))) return std::vector<Site>{{*node, -1}};
  }
  Allowed allowed = s.nodes.only(s.nodes.index().free_for(gang.wants), where, gang.wants);
  if (light) {
    NodeResources with_cpus;
    for (const auto& n : *allowed) {
      if (s.nodes.at(n.first).row.total.units("CPU") > 0) with_cpus.insert(with_cpus.end(), n);
    }
    if (!with_cpus.empty()) allowed = Allowed(std::move(with_cpus));
  }
  const auto placed = [&](const NodeResources& room) {
    return where.spread || light ? place(gang.wants, room, Strategy::kSpread, s.nodes.load()) : place(gang.wants, room, Strategy::kPack);
  };
  std::optional<std::vector<NodeId>> nodes;
  if (!where.prefers.empty()) nodes = placed(*s.nodes.only(*allowed, where.prefers));
  if (!nodes) nodes = placed(*allowed);
  if (!nodes) return std::nullopt;
  std::vector<Site> out;
  for (const NodeId n : *nodes) out.push_back({n, -1});
  return out;
}

WorkerId start_worker(Parts& s, const Site& site, GroupId group, actors::StartWorker message, const Resources& held) {
  message.worker = s.turn.random.id<WorkerId>();
  const WorkerId id = message.worker;
  s.jobs.reach(message.job, site.node);
  s.workers.start(message, site, group, held);
  s.nodes.add_process(site.node);
  if (!group) s.shares.takes(message.job, held);
  s.turn.act(StartWorkerOn{site.node, std::move(message)});
  return id;
}

void start_gang(Parts& s, const Gang& gang, const std::vector<Site>& sites) {
  const GroupId group = gang.spec.where.group;
  s.gangs.start(gang.spec.id, s.turn.now);
  for (std::size_t i = 0; i < gang.spec.actors.size(); ++i) {
    const auto& spec = gang.spec.actors[i];
    const Site& site = sites[i];
    (group ? s.groups.free(group, site.bundle) : s.nodes.free(site.node)) -= spec.resources;
    const WorkerId worker = start_worker(s, site, group, start_of(s, gang, i), spec.resources);
    s.actors.start(spec.id, site.node, worker);
    s.workers.set_actor(worker, spec.id);
    if (gang.spec.detached) s.jobs.set_driver(gang.spec.job, worker);
  }
}

// Returns true if the group has all its bundles now.
bool place_group(Parts& s, GroupId id) {
  const Group& group = s.groups.at(id);
  // With strict spread, bundles that are placed again avoid the nodes of the group's other bundles.
  NodeResources apart;
  const bool keep_apart = group.row.strategy == Strategy::kStrictSpread && std::ranges::any_of(group.row.nodes, &NodeId::operator bool);
  if (keep_apart) {
    apart = s.nodes.index().free();
    for (const NodeId n : group.row.nodes) apart.erase(n);
  }
  const bool by_load = group.row.strategy == Strategy::kSpread;
  const Placeable could = placeable(s.nodes, group, keep_apart ? apart : s.nodes.index().free());
  const auto nodes = place(could, group.row.strategy, by_load ? s.nodes.load() : Load());
  if (!nodes) return false;
  for (const auto& bundle : s.groups.reserve(id, *nodes)) {
    s.nodes.free(bundle.node) -= bundle.size;
    s.shares.takes(group.row.job, bundle.size);
  }
  s.turn.act(NotifyGroup{group.row});
  return true;
}

bool place_job(Parts& s, JobId id) {
  const Job& job = s.jobs.at(id);
  const auto nodes = place(job.wants, s.nodes.index().free_for(job.wants));
  if (!nodes) return false;
  s.jobs.set_places(id, *nodes);
  for (std::size_t i = 0; i < nodes->size(); ++i) s.nodes.free((*nodes)[i]) -= job.wants[i];
  if (job.row.num_workers > 0) {
    s.turn.act(FindPortOn{nodes->front(), id});
  } else {
    start_job(s, id);
  }
  return true;
}

}  // namespace

bool place_one(Parts& s, const Pending& p) {
  if (p.group) return place_group(s, p.group);
  if (p.job) return place_job(s, p.job);
  const Gang& gang = s.gangs.at(p.gang);
  const auto sites = place_gang(s, gang);
  if (sites) start_gang(s, gang, *sites);
  return sites.has_value();
}

void give_back_places(Parts& s, JobId id) {
  const Job& job = s.jobs.at(id);
  for (std::size_t i = 0; i < job.placed.size(); ++i) s.nodes.free(job.placed[i]) += job.wants[i];
  s.jobs.set_places(id, {});
}

void start_job(Parts& s, JobId id) {
  const Job& job = s.jobs.at(id);
  std::vector<WorkerId> processes;
  const auto places = rank_places(job);
  for (std::size_t i = 0; i < job.wants.size(); ++i) {
    processes.push_back(start_worker(s, {job.placed[i], -1}, {}, start_of(job, places[i]), job.wants[i]));
  }
  s.jobs.start(id, processes, s.turn.unix_ms);
  s.turn.act(NotifyJob{job.row});
}

actors::StartWorker start_of(const Parts& s, const Gang& gang, std::size_t member) {
  const auto& spec = gang.spec.actors.at(member);
  Launch launch = gang.spec.launch;
  const auto& actor = s.actors.at(spec.id);
  if (actor.num_restarts > 0) launch.env.emplace_back("SHOAL_RESTARTS", std::to_string(actor.num_restarts));
  const bool alone = gang.spec.actors.size() == 1;
  const std::int32_t rank = alone ? -1 : static_cast<std::int32_t>(member);
  const bool of_functions = actors::is_function_class(spec.class_name);
  const bool run_again = may_restart(actor) || of_functions;  // a lost call of a function is repeated
  return {{},
          gang.spec.job,
          std::move(launch),
          rank,
          of_functions ? actors::kFunctionWorker : spec.class_name,
          spec.resources.units("GPU"),
          run_again};
}

actors::StartWorker start_of(const Job& job, const RankPlace& place) {
  const bool is_rank = job.row.num_workers != 0;
  return {{}, job.row.id, rank_launch(job, place), is_rank ? place.rank : -1, is_rank ? fmt::format("rank {}", place.rank) : "driver", -1};
}

Resources& source(Parts& s, const Worker& worker) {
  const Group* const group = s.groups.living(worker.group);
  // A bundle that was lost or removed has returned only its free part to the node. So its workers return what they hold to the node, not to
  // the bundle.
  const bool reserved = group != nullptr && group->row.nodes.at(static_cast<std::size_t>(worker.bundle)) == worker.row.node;
  return reserved ? s.groups.free(worker.group, worker.bundle) : s.nodes.free(worker.row.node);
}

namespace {

// Divides the room into the nodes of each value of the group's label `together`. Bundles that have a node already decide the value.
std::vector<Allowed> divided(const NodeTable& nodes, const Group& group, Allowed room) {
  std::vector<Allowed> out;
  if (group.together.empty()) {
    out.push_back(std::move(room));
    return out;
  }
  const auto value_of = [&](NodeId id) {
    const auto& labels = nodes.at(id).row.labels;
    const auto label = labels.find(group.together);
    return label == labels.end() ? std::optional<std::string>() : std::optional(label->second);
  };
  std::optional<std::string> decided;
  for (const NodeId placed : group.row.nodes) {
    if (placed) decided = value_of(placed);
  }
  std::map<std::string, NodeResources> by_value;
  for (const auto& [id, has] : *room) {
    const auto value = value_of(id);
    if (value && (!decided || value == decided)) by_value[*value].emplace(id, has);
  }
  for (auto& [value, some] : by_value) out.emplace_back(std::move(some));
  return out;
}

}  // namespace

Placeable placeable(const NodeTable& nodes, const Group& group, const NodeResources& room) {
  Placeable out{missing_bundles(group), {}};
  if (group.labels.empty()) {
    out.rooms = divided(nodes, group, Allowed(&room));
    return out;
  }
  NodeResources labelled = room;
  std::size_t next = 0;
  for (std::size_t i = 0; i < group.labels.size(); ++i) {
    if (group.row.nodes[i]) continue;
    Resources& want = out.wants[next++];
    if (group.labels[i].empty()) continue;
    const std::string name = "labels " + to_string(group.labels[i]);
    want.set_units(name, Resources::kUnit);
    for (auto& [node, has] : labelled) {
      if (matches(nodes.at(node).row.labels, group.labels[i])) has.set_units(name, Resources::kUnit * actors::GroupSpec::kMaxBundles);
    }
  }
  out.rooms = divided(nodes, group, Allowed(std::move(labelled)));
  return out;
}

std::optional<std::vector<NodeId>> place(const Placeable& request, Strategy strategy, const Load& load) {
  for (const Allowed& room : request.rooms) {
    if (auto nodes = place(request.wants, *room, strategy, load)) return nodes;
  }
  return std::nullopt;
}

namespace {

Result<void> check_group(const actors::Where& where, const std::vector<Resources>& wants, const Group* group) {
  if (group == nullptr) {
    return fail(
        not_found("no placement group " + to_string(where.group) + "; it was removed, or never existed").with_reason("GroupRemoved"));
  }
  const auto& bundles = group->row.bundles;
  if (where.bundle < -1 || where.bundle >= static_cast<std::int32_t>(bundles.size())) {
    return fail(invalid_argument(fmt::format("bundle {} does not exist in a placement group with {}", where.bundle, bundles.size())));
  }
  for (const auto& want : wants) {
    const auto holds = [&](const Resources& bundle) { return want.fits_in(bundle); };
    const bool any =
        where.bundle < 0 ? std::any_of(bundles.begin(), bundles.end(), holds) : holds(bundles[static_cast<std::size_t>(where.bundle)]);
    if (any) continue;
    return fail(invalid_argument(fmt::format("{} cannot fit into {} of the placement group", want.to_string(),
                                             where.bundle < 0 ? "any bundle" : fmt::format("bundle {}", where.bundle))));
  }
  return {};
}

}  // namespace

Result<void> check_where(const Parts& s, const Gang& gang) {
  const auto& where = gang.spec.where;
  if (where.group) return check_group(where, gang.wants, s.groups.living(where.group));
  if (!where.node || where.soft) return {};
  const auto unschedulable = [](const std::string& why) {
    return fail(resource_exhausted(why).with_reason("Unschedulable").with_hint("name a living node that can hold it, or pass soft=True"));
  };
  if (!s.nodes.lives(where.node)) return unschedulable("its required node is not in the cluster: " + to_string(where.node));
  const Allowed could = s.nodes.only(s.nodes.index().capacity(), where, gang.wants);
  if (!place(gang.wants, *could)) return unschedulable("its required node could never hold it: " + explain(gang.wants, *could));
  return {};
}

}  // namespace shoal::scheduler
