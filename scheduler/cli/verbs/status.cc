// status: the cluster's state and its addresses.
#include <algorithm>
#include <cstdio>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/device_rows.h"
#include "scheduler/cli/inspection/inspect_nodes.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::Method;
using nlohmann::json;

namespace {

// A row per node: used and total resources.
void print_nodes(const std::vector<actors::NodeRow>& nodes) {
  for (const auto& n : nodes) {
    std::string use;
    const auto total = for_people(n.total);
    for (const auto& [name, units] : total.all()) {
      const auto amount = [](std::int64_t u) { return static_cast<double>(u) / actors::Resources::kUnit; };
      use += fmt::format("{}{}/{} {}", use.empty() ? "" : ", ", amount(units - n.available.units(name)), amount(units), name);
    }
    print(stdout, "  {}  {:<8}  {}  {}\n", to_string(n.id), state_text(n), n.host, n.state == actors::NodeState::kDead ? "-" : use);
  }
}

// Calls of functions and methods, as callers and executing processes report them. Silent processes are not counted.
struct Calls {
  std::size_t running = 0, waiting = 0;
};
Result<Calls> calls_of(ClusterConnection& cluster) {
  SHOAL_TRY(const InspectionReply reported, inspect_nodes(cluster, actors::Inspect::What::kTasks));
  Calls out;
  for (const json& row : task_rows(reported)) {
    const auto state = row.at("state").get<std::string>();
    out.running += state == "RUNNING";
    out.waiting += state.starts_with("PENDING") || state.starts_with("SUBMITTED");
  }
  return out;
}

// Rows of the nodes' GPUs. Empty without a node that offers some.
Result<json> devices_of(ClusterConnection& cluster, const std::vector<actors::NodeRow>& nodes) {
  const auto offers = [](const actors::NodeRow& n) { return n.state == actors::NodeState::kAlive && n.total.units("GPU") > 0; };
  if (std::none_of(nodes.begin(), nodes.end(), offers)) return json::array();
  SHOAL_TRY(const InspectionReply reported, inspect_nodes(cluster, actors::Inspect::What::kMetrics));
  return device_rows(reported);
}

// `verbose` adds a row per node and per GPU.
int status(const Common& common, bool verbose) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto s = cluster->head->request_for<actors::ClusterStatus>(Method::kStatus, {});
  if (!s) return failed(common, s.error());
  actors::ListReply nodes;
  Calls calls;
  json devices;
  if (verbose) {
    auto reported = calls_of(*cluster);
    if (!reported) return failed(common, reported.error());
    calls = *reported;
    auto listed = cluster->head->list(actors::ListRequest::What::kNodes);
    if (!listed) return failed(common, listed.error());
    nodes = *std::move(listed);
    auto read = devices_of(*cluster, nodes.nodes);
    if (!read) return failed(common, read.error());
    devices = *std::move(read);
  }
  if (common.json) {
    json out = json({{"schema", "shoal.status/1"},
                     {"session", s->session},
                     {"address", cluster->address},
                     {"head_pid", s->head_pid},
                     {"total", to_json(s->total)},
                     {"available", to_json(s->available)},
                     {"nodes", s->num_nodes},
                     {"workers", s->num_workers},
                     {"actors", s->num_actors},
                     {"jobs", s->num_jobs},
                     {"store", s->store},
                     {"heads", s->heads},
                     {"pending", s->pending},
                     {"num_pending", s->num_pending},
                     {"set_aside", s->set_aside},
                     {"num_set_aside", s->num_set_aside},
                     {"resources_left_out", s->resources_left_out}});
    if (verbose) out["node_rows"] = rows_json(nodes);
    if (verbose) out["devices"] = devices;
    if (verbose) out["calls"] = {{"running", calls.running}, {"waiting", calls.waiting}};
    print_json(out);
    return kOk;
  }
  print(stdout, "address  {}\nsession  {} (head pid {})\n", cluster->address, s->session, s->head_pid);
  if (!s->store.empty()) print(stdout, "store    {}\n", s->store);
  for (std::size_t i = 1; i < s->heads.size(); ++i) print(stdout, "standby  {}\n", s->heads[i]);
  print(stdout, "nodes    {}\njobs     {} running\nworkers  {}\nactors   {}\n", s->num_nodes, s->num_jobs, s->num_workers, s->num_actors);
  print(stdout, "total    {}\nfree     {}\n", for_people(s->total).to_string(), for_people(s->available).to_string());
  if (verbose) {
    print(stdout, "nodes, with what is used of what they have\n");
    print_nodes(nodes.nodes);
    for (const auto& device : devices) print(stdout, "  {}\n", device_line(device));
    print(stdout, "calls    {} running, {} waiting (shoal list tasks)\n", calls.running, calls.waiting);
    print(stdout, "demands  {} of actors, jobs and placement groups\n", s->num_pending);
  }
  const bool own_names_left = for_people(s->total).all().size() < s->total.all().size();  // the first that sums leave out
  if (s->resources_left_out > 0 && !own_names_left) print(stdout, "         and {} more names (shoal list nodes)\n", s->resources_left_out);
  for (const auto& p : s->pending) print(stdout, "pending  {}\n", p);
  if (s->num_set_aside > 0)
    print(stdout, "rows     {} of the head's store could not be used; what needed them has ended\n", s->num_set_aside);
  for (const auto& row : s->set_aside) print(stdout, "         {}\n", row);
  return kOk;
}

}  // namespace

void add_status(CommandLine& line) {
  auto& verbose = line.own(false);
  auto* verb = line.add_verb("status", "Show the state of a cluster: its resources, its work, and why something waits");
  verb->add_flag("-v,--verbose", verbose, "Also show the nodes, their GPUs and the use of their resources");
  line.on_run(verb, [&verbose](const Common& common) { return status(common, verbose); });
}

}  // namespace shoal::scheduler::cli
