// The state of a cluster as plain values: the rows that `shoal list` shows.
//
// A row has a field for each column that lists show. ActorRow has many, since lists, watchers and stored records use the same row.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/resources.h"
#include "actors/protocol/cluster/specs.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::actors {

// The reason of errors that follow from the end of a process which was killed for lack of memory.
inline constexpr const char* kOutOfMemory = "OutOfMemory";

enum class ActorState : std::uint16_t { kPending, kStarting, kAlive, kDead, kRestarting };
enum class JobState : std::uint16_t { kPending, kRunning, kSucceeded, kFailed, kStopped };
// kStopped: a signal (SIGSTOP) has stopped the process.
enum class WorkerState : std::uint16_t { kStarting, kRunning, kExited, kStopped };
inline constexpr std::uint16_t kNumWorkerStates = 4;
enum class NodeState : std::uint16_t { kAlive, kDead };
// kRescheduling: a node with one of its bundles was lost, and that bundle waits for another node.
enum class GroupState : std::uint16_t { kPending, kCreated, kRescheduling, kRemoved };
// A node's readiness for new work. A draining node takes none either, and leaves once it is idle or its deadline is over.
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
  std::string endpoint;                           // where its process takes calls; empty until the actor lives
  std::string pending_reason;                     // why the actor is not placed yet
  std::map<std::string, std::string> attributes;  // texts that the actor itself sets: rows, bytes
  std::optional<Error> cause;                     // why the actor is dead, or its process ended
};

struct NodeRow {
  NodeId id;
  std::string host;
  pid_t pid = 0;
  NodeState state = NodeState::kAlive;
  std::string endpoint;
  Resources total, available;
  std::map<std::string, std::string> labels;
  bool cordoned = false;                 // the node takes no new work
  std::int64_t drain_until_unix_ms = 0;  // deadline of the drain; 0: the node is not draining

  NodeScheduling scheduling() const {
    return drain_until_unix_ms != 0 ? NodeScheduling::kDraining : cordoned ? NodeScheduling::kCordoned : NodeScheduling::kSchedulable;
  }
};
// The state that lists show: ALIVE, CORDONED, DRAINING or DEAD.
const char* state_text(const NodeRow& row);

struct WorkerRow {
  WorkerId id;
  NodeId node;
  JobId job;
  pid_t pid = 0;
  WorkerState state = WorkerState::kStarting;
  std::string role;  // as lists show it: "driver", "rank 3", "actor Counter"
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
  std::int32_t exit_code = 0;  // the driver's exit code, as a shell reports it
  std::string pending_reason;
  std::optional<Error> cause;
  Submission submission;
};

struct GroupRow {
  GroupId id;
  JobId job;  // 0: the group is detached
  std::string name, name_space;
  Strategy strategy = Strategy::kPack;
  GroupState state = GroupState::kPending;
  std::vector<Resources> bundles;
  std::vector<NodeId> nodes;  // the node of each bundle; empty while the group waits
  std::string pending_reason;
  std::optional<Error> cause;  // why the group was removed
};

struct ClusterStatus {
  std::string session;  // the session folder
  pid_t head_pid = 0;
  Resources total, available;
  std::uint32_t num_nodes = 0, num_workers = 0, num_actors = 0, num_jobs = 0;
  std::vector<std::string> pending;  // actors, groups and jobs that wait, with the reasons
  std::string store;                 // name of the store that the head uses
  std::vector<std::string> heads;    // endpoints, the leading head's first; empty with one head
  // Other jobs wait for resources that workers of functions of the asking job hold.
  bool wanted_back = false;
};

}  // namespace shoal::actors
