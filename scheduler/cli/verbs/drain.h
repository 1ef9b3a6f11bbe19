// cordon, uncordon, drain, drain-node: stop or resume new work on a node, or make it leave in order.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct SchedulingOptions {
  std::string node;  // prefix of the node's id; "": the only node
  actors::NodeScheduling scheduling = actors::NodeScheduling::kCordoned;
  double deadline_s = 60;       // for a drain
  bool wait = true;             // until the node is drained
  std::string reason, message;  // as Ray names them; with the reason of an idle termination only an idle node is drained
};
constexpr const char* kIdleTermination = "DRAIN_NODE_REASON_IDLE_TERMINATION";
int set_scheduling(const Common& common, const SchedulingOptions& options);

void add_cordon(CommandLine& line);
void add_uncordon(CommandLine& line);
void add_drain(CommandLine& line);
void add_drain_node(CommandLine& line);

}  // namespace shoal::scheduler::cli
