// What head, nodes and clients tell each other about: launches, gangs, jobs, and the rows that `shoal list` shows.
// Plain values.
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

// The reason of errors of what died with a process that was killed for want of memory, whoever tells of it.
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

// How things that are placed together lie on nodes. Pack: on as few as they fit on, one after the other; spread: on as many as there are;
// strictly: on one, or each on another, or not at all.
enum class Strategy : std::uint16_t { kPack, kSpread, kStrictPack, kStrictSpread };
const char* to_string(Strategy strategy);

// A condition on a label of a node: it is there and its value is one of `values` (of none given: whatever it is), or (negated) not so.
struct LabelMatch {
  std::string label;
  std::vector<std::string> values;
  bool negated = false;
  bool operator==(const LabelMatch&) const = default;
};

// Where something may be placed, beside having room there.
struct Where {
  GroupId group;             // out of this placement group's resources,
  std::int32_t bundle = -1;  // of this bundle of it, or any
  NodeId node;               // on this node
  bool soft = false;         // or, if that one is gone or could never hold it, on another
  bool spread = false;       // where few are already
  std::vector<LabelMatch> labels;
  std::vector<LabelMatch> prefers;  // on a node with these, too, if there is room on one
  bool operator==(const Where&) const = default;
};

struct ActorSpec {
  ActorId id;
  std::string class_name;
  Resources resources;
};

// Actors that are placed together or not at all; each gets a process of its own. Ranks follow the order of `actors`.
struct GangSpec {
  GangId id;
  JobId job;
  std::vector<ActorSpec> actors;
  Launch launch;
  Where where;
  // The process that asks for it, of one that a node started. If that is an actor's or a worker of functions, it ends with that process;
  // a detached one does not, nor what a driver or a rank of a job asked for, which ends with its job.
  WorkerId creator;
  // Fail with ResourceExhausted/Infeasible when no present node could ever hold it, instead of waiting for one that
  // can.
  bool refuse_infeasible = false;

  // Of one actor alone. A name is unique in its namespace while its actor lives, and `handle` (the client's own bytes) is what those who
  // find it by name get. A detached actor is a job of its own, which ends with it: it outlives the job that asked for it.
  std::string name, name_space, handle;
  bool get_if_exists = false;  // the living one of this name, if there is one, instead of a new one
  bool detached = false;
  // Also of one alone. How often it is started again when its process ends although nobody asked for that (-1: always), with what it is
  // made from then (`birth`, the client's own bytes); and how often a caller sends a call again that was lost so.
  std::int32_t max_restarts = 0, max_task_retries = 0;
  std::string birth;
  static constexpr std::size_t kMaxActors = 4096;
  static constexpr std::size_t kMaxName = 1000, kMaxHandle = 1 << 18, kMaxBirth = 1 << 19;  // bytes
};

// Resources that are reserved together or not at all, bundle by bundle, each on one node; actors are placed into them later.
struct GroupSpec {
  GroupId id;
  JobId job;
  std::string name, name_space;  // unique while it lives; may be empty
  Strategy strategy = Strategy::kPack;
  std::vector<Resources> bundles;
  std::vector<std::vector<LabelMatch>> labels;  // of the node of each bundle; empty: of any
  bool detached = false;                        // outlives its job
  static constexpr std::size_t kMaxBundles = 4096;
};

// What a submitted job was asked for with, as it is shown again.
struct Submission {
  std::string id;  // the submitter's, or the job's own; unique among the jobs that are known
  std::string entrypoint;
  std::string runtime_env;  // JSON
  std::map<std::string, std::string> metadata;
  bool operator==(const Submission&) const = default;
  static constexpr std::size_t kMaxId = 256, kMaxText = 1 << 16;  // bytes; of each of the others
};

// One driver process, or (num_workers > 0) a gang of processes with torchrun's environment variables.
struct JobSpec {
  std::string name;
  Launch launch;
  std::uint32_t num_workers = 0;
  Resources resources;  // of each process
  bool wait = false;    // for nodes that could hold it
  pid_t owner = 0;
  Submission submission;
};

enum class ActorState : std::uint16_t { kPending, kStarting, kAlive, kDead, kRestarting };
enum class JobState : std::uint16_t { kPending, kRunning, kSucceeded, kFailed, kStopped };
enum class WorkerState : std::uint16_t { kStarting, kRunning, kExited };
enum class NodeState : std::uint16_t { kAlive, kDead };
// Rescheduling: a node with a bundle of it was lost, and that bundle waits for another.
enum class GroupState : std::uint16_t { kPending, kCreated, kRescheduling, kRemoved };
// Whether a node takes new work. One that drains also leaves, once nothing runs there or its time is over.
enum class NodeDuty : std::uint16_t { kWorks, kCordoned, kDrains };
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
  WorkerId worker, previous;  // the one before it, of an actor that was started again
  pid_t pid = 0;
  GangId gang;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::uint64_t generation = 0;
  std::string name, name_space;
  bool detached = false;
  std::int32_t max_restarts = 0, max_task_retries = 0;
  std::uint32_t num_restarts = 0;
  std::string endpoint;                           // where it takes calls; empty until alive
  std::string pending_reason;                     // why it is not placed yet
  std::map<std::string, std::string> attributes;  // what the actor says of itself: rows, bytes
  std::optional<Error> cause;                     // of its death
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
  std::int64_t drain_until_unix_ms = 0;  // and leaves then, or earlier; 0: stays

  NodeDuty duty() const { return drain_until_unix_ms != 0 ? NodeDuty::kDrains : cordoned ? NodeDuty::kCordoned : NodeDuty::kWorks; }
};
// As people are told: ALIVE, CORDONED, DRAINING, DEAD.
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
  std::int32_t exit_code = 0;  // as a shell says it
  std::string pending_reason;
  std::optional<Error> cause;
  Submission submission;
};

struct GroupRow {
  GroupId id;
  JobId job;  // none: detached
  std::string name, name_space;
  Strategy strategy = Strategy::kPack;
  GroupState state = GroupState::kPending;
  std::vector<Resources> bundles;
  std::vector<NodeId> nodes;  // of each bundle; none while it waits
  std::string pending_reason;
  std::optional<Error> cause;  // of its removal
};

struct ClusterStatus {
  std::string session;  // its folder
  pid_t head_pid = 0;
  Resources total, available;
  std::uint32_t num_nodes = 0, num_workers = 0, num_actors = 0, num_jobs = 0;
  std::vector<std::string> pending;  // what waits, and for what
  std::string store;                 // where the head keeps its decisions
  std::vector<std::string> heads;    // endpoints, the one that leads first; none where there is one head
  bool wanted_back = false;          // by somebody else, of what the asking job's workers of remote functions hold
};

}  // namespace shoal::actors
