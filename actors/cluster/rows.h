// The state of a cluster as plain values: the rows that `shoal list` shows.
//
// A row has a field for each column, so that ActorRow has many: lists, watchers and records carry it whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/resources.h"
#include "actors/cluster/specs.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::actors {

// The reason in errors that follow from a process killed for lack of memory.
inline constexpr const char* kOutOfMemory = "OutOfMemory";

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
