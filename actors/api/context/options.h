// Options of a C++ program's actors, remote functions and placement groups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/specs.h"
#include "runtime/core/id.h"

namespace shoal {

using actors::LabelMatch;
using actors::Strategy;  // kPack, kSpread, kStrictPack, kStrictSpread

// Constraints on placement besides free resources.
struct Where {
  GroupId group = {};                    // from this placement group's resources
  std::int32_t bundle = -1;              // from this bundle of the group; -1: any
  NodeId node = {};                      // on this node
  bool soft = false;                     // if that node is gone or could never hold the actor, on another node
  bool at_once = false;                  // if that node has no room now: with `soft` on another node, else fail as ResourceExhausted
  bool spread = false;                   // on the node with the fewest processes
  std::vector<LabelMatch> labels = {};   // only on a node with these labels
  std::vector<LabelMatch> prefers = {};  // preferred labels, if such a node has room
};

// CPUs are logical. By default an actor needs none.
struct ActorOptions {
  double num_cpus = 0;
  double num_gpus = 0;
  double memory = 0;  // bytes
  std::map<std::string, double> resources = {};
  // The process's environment, added to this process's own (from MainOptions or its actor's options), and its working folder, by default
  // this process's. The folder is not copied, and must exist on the actor's host.
  std::map<std::string, std::string> env = {};
  std::string working_dir = "";
  // Fails with ResourceExhausted/Infeasible if no present node could ever hold the actor. Otherwise the actor waits for such a node.
  bool refuse_infeasible = false;
  Where where = {};

  // The maximum of calls under way, which may end in any order but begin in each caller's order. They run on as many threads (1 to 1000,
  // default 1). With coroutine methods all run on one loop, each up to its awaits (default 1000). Methods in concurrency groups
  // (methods.h) do not count.
  std::optional<std::int32_t> max_concurrency = {};

  // For a single actor. Context::get_actor finds a name in its namespace, by default this job's. While the named actor lives, another is
  // refused (InvalidArgument/NameTaken), or spawn() returns the living one (get_if_exists). A detached actor outlives its job.
  std::string name = "", name_space = "";
  bool get_if_exists = false;
  bool detached = false;
  // `max_restarts`: how often the actor is made anew from its constructor's arguments (at most 512 KiB) after its process died.
  // `max_task_retries`: how often a call that was lost with the process is repeated; then it fails with Unavailable/ActorUnavailable. -1:
  // without limit.
  std::int32_t max_restarts = 0, max_task_retries = 0;
};

struct FunctionOptions {
  double num_cpus = 1;
  double num_gpus = 0;
  double memory = 0;  // bytes
  std::map<std::string, double> resources = {};
  std::map<std::string, std::string> env = {};  // as ActorOptions::env, and so is working_dir
  std::string working_dir = "";
  Where where = {};
  // How often a call is repeated after deaths of its process (-1: without limit); then it fails with Unavailable/WorkerCrashed.
  std::int32_t max_retries = 3;
  std::uint32_t max_calls = 0;  // after so many calls a worker process ends; 0: without limit
};

struct GroupOptions {
  Strategy strategy = Strategy::kPack;
  std::string name = "", name_space = "";
  std::vector<LabelMatch> labels = {};  // labels of the node that a bundle may be on
  std::string together = "";            // all bundles on nodes with one value of this label, such as a rack
  bool detached = false;                // outlives its job
};

}  // namespace shoal
