// What a C++ program asks of the cluster for its actors, its remote functions and its placement groups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"
#include "runtime/core/id.h"

namespace shoal {

using actors::LabelMatch;
using actors::Strategy;  // kPack, kSpread, kStrictPack, kStrictSpread

// Where something may be placed, beside having room there.
struct Where {
  GroupId group = {};                    // out of this placement group's resources,
  std::int32_t bundle = -1;              // of this bundle of it, or any
  NodeId node = {};                      // on this node
  bool soft = false;                     // or, if that one is gone or could never hold it, on another
  bool spread = false;                   // where few are already
  std::vector<LabelMatch> labels = {};   // on a node with these
  std::vector<LabelMatch> prefers = {};  // and with these, if there is room on one
};

// CPUs are logical: an actor asks for none unless told so.
struct ActorOptions {
  double num_cpus = 0;
  double num_gpus = 0;
  double memory = 0;  // bytes
  std::map<std::string, double> resources = {};
  // Its process's: added to the environment, over what this process got in this way itself (MainOptions, or the options of this actor); and
  // the folder in which it begins, by default the one in which this process is. It is used as it is (no copy), on whatever host that is.
  std::map<std::string, std::string> env = {};
  std::string working_dir = "";
  // Fail with ResourceExhausted/Infeasible when no present node could ever hold it, instead of waiting for one that can.
  bool refuse_infeasible = false;
  Where where = {};

  // How many of its calls may be under way at the same time, and end in any order; one caller's still begin in the order in which they were
  // made. They run on as many threads (1 to 1000; by default 1). Of an actor with methods that are coroutines all run on one loop, each up
  // to where it awaits something (by default 1000). Methods in concurrency groups (methods.h) do not count here.
  std::optional<std::int32_t> max_concurrency = {};

  // Of a single actor. A name is found by others (Context::get_actor) in its namespace, by default this job's; it is refused
  // (InvalidArgument/NameTaken) while its actor lives, or that one is what spawn() returns (get_if_exists). Detached: it outlives its job.
  std::string name = "", name_space = "";
  bool get_if_exists = false;
  bool detached = false;
  // How often it is started again, from the arguments of its constructor (at most 512 KiB), when its process ends unasked (-1: always);
  // and how often a call that was lost with it is made again, instead of failing with Unavailable/ActorUnavailable.
  std::int32_t max_restarts = 0, max_task_retries = 0;
};

struct FunctionOptions {
  double num_cpus = 1;
  double num_gpus = 0;
  double memory = 0;  // bytes
  std::map<std::string, double> resources = {};
  std::map<std::string, std::string> env = {};  // as an actor's
  std::string working_dir = "";
  Where where = {};
  std::int32_t max_retries = 3;  // after deaths of the process that ran it (-1: any number); then Unavailable/WorkerCrashed
  std::uint32_t max_calls = 0;   // in one process; 0: any number
};

struct GroupOptions {
  Strategy strategy = Strategy::kPack;
  std::string name = "", name_space = "";
  std::vector<LabelMatch> labels = {};  // of the nodes
  bool detached = false;                // outlives its job
};

}  // namespace shoal
