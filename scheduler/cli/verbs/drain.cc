// cordon, uncordon, drain, drain-node: stop or resume new work on a node, or make it leave in order.
#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <netdb.h>

#include "runtime/net/socket/address.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::Method;
using actors::NodeRow;
using actors::NodeScheduling;
using actors::NodeState;

namespace {

struct SchedulingOptions {
  std::string node;  // prefix of the node's id; "": the only node
  actors::NodeScheduling scheduling = actors::NodeScheduling::kCordoned;
  double deadline_s = 60;       // for a drain
  bool wait = true;             // until the node is drained
  std::string reason, message;  // as Ray names them; with the reason of an idle termination only an idle node is drained
};

constexpr const char* kIdleTermination = "DRAIN_NODE_REASON_IDLE_TERMINATION";
constexpr std::size_t kLongId = 8;  // so many hexadecimal digits are an id: no name server is needed
constexpr double kLongestDrainS = 7 * 24 * 3600.0;

Result<std::vector<NodeRow>> nodes_of(Client& head) {
  SHOAL_TRY(auto reply, head.list(actors::ListRequest::What::kNodes));
  return std::move(reply.nodes);
}

// The addresses of the host with this name, as nodes' rows have them.
std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> out;
  runtime::Endpoint endpoint;
  endpoint.host = host;
  const auto found = runtime::resolve(endpoint);
  if (!found) return out;
  for (const auto& address : *found) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(address.get(), address.length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) out.emplace_back(text);
  }
  return out;
}

// The living node whose id starts with `id`, or whose host has that address or name. A name such as "b" may be both, of two nodes.
Result<NodeRow> find_node(Client& head, const std::string& id) {
  SHOAL_TRY(const auto nodes, nodes_of(head));
  const bool long_id = id.size() >= kLongId && id.find_first_not_of("0123456789abcdef") == std::string::npos;
  const auto addresses = id.empty() || long_id ? std::vector<std::string>() : addresses_of(id);
  std::vector<NodeRow> found;
  for (const auto& n : nodes) {
    const bool there = std::find(addresses.begin(), addresses.end(), n.host) != addresses.end();
    if (n.state == NodeState::kAlive && (there || to_string(n.id).starts_with(id))) found.push_back(n);
  }
  if (id.empty() && found.size() > 1)
    return fail(invalid_argument(fmt::format("there are {} nodes: name one with --node-id", found.size())));
  if (found.empty()) return fail(not_found("no living node " + id).with_hint("see shoal list nodes"));
  if (found.size() > 1)
    return fail(invalid_argument(fmt::format("{} nodes have this host, or an id that begins with {}", found.size(), id)));
  return found.front();
}

// Waits until the node has left. If the head dies meanwhile, it asks the next one.
Result<void> wait_until_left(ClusterConnection& cluster, NodeId id, std::chrono::milliseconds limit) {
  const auto end = cluster.context->clock->now() + limit;
  while (cluster.context->clock->now() < end) {
    const auto nodes = nodes_of(*cluster.head);
    if (!nodes && cluster.head->is_back()) continue;
    if (!nodes) return fail(nodes.error());
    const auto it = std::find_if(nodes->begin(), nodes->end(), [&](const NodeRow& n) { return n.id == id; });
    if (it == nodes->end() || it->state == NodeState::kDead) return {};
    if (it->scheduling() != NodeScheduling::kDraining) return fail(cancelled("the drain was called off"));
    cluster.context->run_until([] { return false; }, std::chrono::milliseconds(50));
  }
  return fail(deadline_exceeded("node " + to_string(id) + " did not leave in time"));
}

int set_scheduling(const Common& common, const SchedulingOptions& options) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto node = find_node(*cluster->head, options.node);
  if (!node) return failed(common, node.error());
  if (options.reason == kIdleTermination && !node->total.all().empty() && node->available.all() != node->total.all()) {
    return failed(common, Error(Code::kUnavailable, "node " + to_string(node->id) + " is not idle").with_reason("NodeBusy"));
  }
  const auto deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.deadline_s * 1000));
  const actors::SetNodeScheduling wish{node->id, options.scheduling, static_cast<std::uint64_t>(deadline.count())};
  auto set = cluster->head->request(Method::kSetNodeScheduling, to_bytes(wish));
  if (!set && cluster->head->is_back()) set = cluster->head->request(Method::kSetNodeScheduling, to_bytes(wish));
  if (!set) return failed(common, set.error());
  const bool waits = options.scheduling == NodeScheduling::kDraining && options.wait;
  if (waits) {
    if (const auto left = wait_until_left(*cluster, node->id, deadline + std::chrono::seconds(30)); !left) {
      return failed(common, left.error());
    }
  }
  const char* now = waits                                             ? "drained"
                    : options.scheduling == NodeScheduling::kDraining ? "draining"
                    : options.scheduling == NodeScheduling::kCordoned ? "cordoned"
                                                                      : "uncordoned";
  if (common.json) {
    print_json({{"schema", "shoal.duty/1"}, {"node", to_string(node->id)}, {"now", now}});
  } else {
    print(stdout, "Node {} is {}.\n", to_string(node->id), now);
  }
  return kOk;
}

CLI::App* add_scheduling_verb(CommandLine& line, const char* name, const char* about, SchedulingOptions& options) {
  auto* verb = line.add_verb(name, about);
  verb->add_option("node", options.node, "The node's id, the beginning of it, or its host; `shoal list nodes` shows them")
      ->required()
      ->check(not_empty());
  line.on_run(verb, [&options](const Common& common) { return set_scheduling(common, options); });
  return verb;
}

}  // namespace

void add_cordon(CommandLine& line) {
  auto& options = line.own<SchedulingOptions>();
  options.scheduling = NodeScheduling::kCordoned;
  add_scheduling_verb(line, "cordon", "Keep new work away from a node", options);
}

void add_uncordon(CommandLine& line) {
  auto& options = line.own<SchedulingOptions>();
  options.scheduling = NodeScheduling::kSchedulable;
  add_scheduling_verb(line, "uncordon", "Let a cordoned or draining node take work again", options);
}

void add_drain(CommandLine& line) {
  auto& options = line.own<SchedulingOptions>();
  options.scheduling = NodeScheduling::kDraining;
  auto* verb =
      add_scheduling_verb(line, "drain", "End a node: move actors that may restart, and let other work run until the deadline", options);
  verb->add_option("--deadline", options.deadline_s, "Seconds until the node ends")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kLongestDrainS));
  verb->add_flag_callback("--no-wait", [&options] { options.wait = false; }, "Do not wait until the node has left");
}

void add_drain_node(CommandLine& line) {
  auto& options = line.own<SchedulingOptions>();
  options.scheduling = NodeScheduling::kDraining;
  options.deadline_s = kLongestDrainS;
  options.wait = false;
  auto* verb = line.add_verb("drain-node", "Drain a node, with Ray's options; does not wait");
  verb->add_option("--node-id", options.node, "The node's id (default: that of the only node)")->check(not_empty());
  verb->add_option("--reason", options.reason,
                   "Reason: DRAIN_NODE_REASON_IDLE_TERMINATION (drains an idle node only) or DRAIN_NODE_REASON_PREEMPTION")
      ->required()
      ->check(CLI::IsMember({kIdleTermination, "DRAIN_NODE_REASON_PREEMPTION"}));
  verb->add_option("--reason-message", options.message, "Reason as text")->required();
  verb->add_option("--deadline-remaining-seconds", options.deadline_s, "Seconds until the node ends (default: a week)")
      ->check(CLI::Range(0.0, kLongestDrainS));
  line.on_run(verb, [&options](const Common& common) { return set_scheduling(common, options); });
}

}  // namespace shoal::scheduler::cli
