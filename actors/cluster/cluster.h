// Plain values that head, nodes and clients exchange: launches, gangs, jobs, and the rows that `shoal list` shows.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/cluster/resources.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"
#include "runtime/net/endpoint.h"

namespace shoal::actors {

// The reason in errors that follow from a process killed for lack of memory.
inline constexpr const char* kOutOfMemory = "OutOfMemory";

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

enum class ActorState : std::uint16_t { kPending, kStarting, kAlive, kDead, kRestarting };
enum class JobState : std::uint16_t { kPending, kRunning, kSucceeded, kFailed, kStopped };
enum class WorkerState : std::uint16_t { kStarting, kRunning, kExited };
enum class NodeState : std::uint16_t { kAlive, kDead };
// kRescheduling: a node with one of its bundles was lost, and that bundle waits for another node.
enum class GroupState : std::uint16_t { kPending, kCreated, kRescheduling, kRemoved };
// Willingness to take new work. A draining node also leaves, once it is idle or its deadline is over.
enum class NodeScheduling : std::uint16_t { kSchedulable, kCordoned, kDraining };
inline bool ended(JobState state) { return state != JobState::kPending && state != JobState::kRunning; }
const char* to_string(ActorState state);
const char* to_string(JobState state);
const char* to_string(WorkerState state);
const char* to_string(NodeState state);
const char* to_string(GroupState state);

struct ActorRow {
  ActorId id;
  std::string class_name;
  ActorState state = ActorState::kPending;
  JobId job;
  NodeId node;
  WorkerId worker, previous;  // `previous`: the worker before the last restart
  pid_t pid = 0;
  GangId gang;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::uint64_t generation = 0;
  std::string name, name_space;
  bool detached = false;
  std::int32_t max_restarts = 0, max_task_retries = 0;
  std::uint32_t num_restarts = 0;
  std::string endpoint;                           // its process's; empty until alive
  std::string pending_reason;                     // why it is not placed yet
  std::map<std::string, std::string> attributes;  // set by the actor itself: rows, bytes
  std::optional<Error> cause;                     // cause of death
};

struct NodeRow {
  NodeId id;
  std::string host;
  pid_t pid = 0;
  NodeState state = NodeState::kAlive;
  std::string endpoint;
  Resources total, available;
  std::map<std::string, std::string> labels;
  bool cordoned = false;                 // takes no new work
  std::int64_t drain_until_unix_ms = 0;  // end of the drain; 0: no drain

  NodeScheduling scheduling() const {
    return drain_until_unix_ms != 0 ? NodeScheduling::kDraining : cordoned ? NodeScheduling::kCordoned : NodeScheduling::kSchedulable;
  }
};
// Displayed states: ALIVE, CORDONED, DRAINING, DEAD.
const char* state_text(const NodeRow& row);

struct WorkerRow {
  WorkerId id;
  NodeId node;
  JobId job;
  pid_t pid = 0;
  WorkerState state = WorkerState::kStarting;
  std::string role;  // "driver", "rank 3", "actor Counter"
  std::int32_t rank = -1;
  std::optional<Error> cause;
};

struct JobRow {
  JobId id;
  std::string name;
  JobState state = JobState::kPending;
  pid_t driver_pid = 0;
  std::uint32_t num_workers = 0;
  std::int64_t started_unix_ms = 0;
  std::int64_t ended_unix_ms = 0;
  std::int32_t exit_code = 0;  // as in a shell
  std::string pending_reason;
  std::optional<Error> cause;
  Submission submission;
};

struct GroupRow {
  GroupId id;
  JobId job;  // 0: detached
  std::string name, name_space;
  Strategy strategy = Strategy::kPack;
  GroupState state = GroupState::kPending;
  std::vector<Resources> bundles;
  std::vector<NodeId> nodes;  // the bundles' nodes; empty while it waits
  std::string pending_reason;
  std::optional<Error> cause;  // cause of removal
};

struct ClusterStatus {
  std::string session;  // its folder
  pid_t head_pid = 0;
  Resources total, available;
  std::uint32_t num_nodes = 0, num_workers = 0, num_actors = 0, num_jobs = 0;
  std::vector<std::string> pending;  // waiting actors, groups and jobs, with their reasons
  std::string store;                 // the head's storage
  std::vector<std::string> heads;    // endpoints, the leading head first; empty with one head
  bool wanted_back = false;          // other jobs wait for resources that the asking job's workers of functions hold
};

}  // namespace shoal::actors
