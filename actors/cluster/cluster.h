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
  // Fail with ResourceExhausted/Infeasible when no present node could ever hold it, instead of waiting for one that
  // can.
  bool refuse_infeasible = false;
  static constexpr std::size_t kMaxActors = 4096;
};

// One driver process, or (num_workers > 0) a gang of processes with torchrun's environment variables.
struct JobSpec {
  std::string name;
  Launch launch;
  std::uint32_t num_workers = 0;
  Resources resources;  // of each process
  bool wait = false;    // for nodes that could hold it
  pid_t owner = 0;
};

enum class ActorState : std::uint16_t { kPending, kStarting, kAlive, kDead };
enum class JobState : std::uint16_t { kPending, kRunning, kSucceeded, kFailed, kStopped };
enum class WorkerState : std::uint16_t { kStarting, kRunning, kExited };
enum class NodeState : std::uint16_t { kAlive, kDead };
inline bool ended(JobState state) { return state != JobState::kPending && state != JobState::kRunning; }
const char* to_string(ActorState state);
const char* to_string(JobState state);
const char* to_string(WorkerState state);
const char* to_string(NodeState state);

struct ActorRow {
  ActorId id;
  std::string class_name;
  ActorState state = ActorState::kPending;
  JobId job;
  NodeId node;
  WorkerId worker;
  pid_t pid = 0;
  GangId gang;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::uint64_t generation = 0;
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
};

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
};

struct ClusterStatus {
  std::string session;  // its folder
  pid_t head_pid = 0;
  Resources total, available;
  std::uint32_t num_nodes = 0, num_workers = 0, num_actors = 0, num_jobs = 0;
  std::vector<std::string> pending;  // what waits, and for what
};

}  // namespace shoal::actors
