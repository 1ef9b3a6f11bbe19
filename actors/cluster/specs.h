// Requests to start something, as plain values: launches, gangs, placement groups and jobs, with their constraints on placement.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/cluster/resources.h"
#include "runtime/core/id.h"

namespace shoal::actors {

// How to start a process.
struct Launch {
  enum class Kind : std::uint16_t {
    kPythonWorker,  // hosts actors; forked from a zygote of `program`
    kPythonScript,  // runs argv as a script; forked from a zygote of `program`
    kProgram,       // runs argv
    kNativeWorker,  // hosts C++ actors: `program` is the driver's own binary, which must have `build_id`
  };
  static constexpr std::uint16_t kNumKinds = 4;

  Kind kind = Kind::kProgram;
  std::string program;
  std::vector<std::string> argv;
  bool torch = false;  // fork from a zygote that has imported torch
  std::string build_id;
  std::string cwd;
  std::vector<std::pair<std::string, std::string>> env;  // added to the node's own
  std::vector<std::string> python_path;                  // put in front of sys.path
  bool operator==(const Launch&) const = default;
};

// Placement of a group's parts on nodes. Pack: on as few nodes as possible; spread: on as many as possible. The strict forms require one
// node, or a node for each, or fail.
enum class Strategy : std::uint16_t { kPack, kSpread, kStrictPack, kStrictSpread };
const char* to_string(Strategy strategy);

// A condition on a node's label: it exists and its value is in `values` (empty: any value). Negated: the opposite.
struct LabelMatch {
  std::string label;
  std::vector<std::string> values;
  bool negated = false;
  bool operator==(const LabelMatch&) const = default;
};

// Constraints on placement besides free resources.
struct Where {
  GroupId group;             // from this placement group's resources
  std::int32_t bundle = -1;  // from this bundle of the group; -1: any
  NodeId node;               // on this node
  bool soft = false;         // if that node is gone or could never hold it, on another
  bool spread = false;       // where few are placed already
  std::vector<LabelMatch> labels;
  std::vector<LabelMatch> prefers;  // preferred labels, if such a node has room
  bool operator==(const Where&) const = default;
};

struct ActorSpec {
  ActorId id;
  std::string class_name;
  Resources resources;
};

// Actors that are placed together or not at all; each gets its own process. Ranks follow the order of `actors`.
struct GangSpec {
  GangId id;
  JobId job;
  std::vector<ActorSpec> actors;
  Launch launch;
  Where where;
  // The process that asked for the gang, if a node started it. A gang asked for by an actor or a worker of functions ends with that
  // process, unless detached. A gang of a driver or a rank of a job ends with its job.
  WorkerId creator;
  // Fail with ResourceExhausted/Infeasible if no present node could ever hold it, instead of waiting for such a node.
  bool refuse_infeasible = false;

  // For a single actor. A name is unique in its namespace while its actor lives; finding it by name returns `handle` (the client's own
  // bytes). A detached actor is its own job, which ends with it, so that it outlives the job that asked for it.
  std::string name, name_space, handle;
  bool get_if_exists = false;  // return the living actor of this name, if any
  bool detached = false;
  // For a single actor: restarts after unrequested ends of its process (-1: unlimited), and resends of a call lost that way. A restart
  // uses `creation_spec` (the client's own bytes).
  std::int32_t max_restarts = 0, max_task_retries = 0;
  std::string creation_spec;
  static constexpr std::size_t kMaxActors = 4096;
  static constexpr std::size_t kMaxName = 1000, kMaxHandle = 1 << 18, kMaxCreationSpec = 1 << 19;  // bytes
};

// Resources reserved together or not at all, each bundle on one node; actors are placed into them later.
struct GroupSpec {
  GroupId id;
  JobId job;
  std::string name, name_space;  // unique while it lives; may be empty
  Strategy strategy = Strategy::kPack;
  std::vector<Resources> bundles;
  std::vector<std::vector<LabelMatch>> labels;  // required of each bundle's node; empty: none
  bool detached = false;                        // outlives its job
  static constexpr std::size_t kMaxBundles = 4096;
};

// The arguments of a submitted job, as they are displayed.
struct Submission {
  std::string id;  // the submitter's, or the job's own; unique among the head's jobs
  std::string entrypoint;
  std::string runtime_env;  // JSON
  std::map<std::string, std::string> metadata;
  bool operator==(const Submission&) const = default;
  static constexpr std::size_t kMaxId = 256, kMaxText = 1 << 16;  // bytes; kMaxText for each of the others
};

// One driver process, or (num_workers > 0) a gang of processes with torchrun's environment variables.
struct JobSpec {
  std::string name;
  Launch launch;
  std::uint32_t num_workers = 0;
  Resources resources;  // per process
  bool wait = false;    // for nodes that could hold it
  pid_t owner = 0;
  Submission submission;
};

}  // namespace shoal::actors
