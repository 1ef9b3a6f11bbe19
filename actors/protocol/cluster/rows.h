// The state of a cluster as plain values: the rows that `shoal list` shows.
//
// A row has a field for each column that lists show. ActorRow has many, since lists, watchers and stored records use the same row.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "actors/protocol/cluster/fields.h"
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
// A node's readiness for new work. Cordoned and draining nodes take none. A draining node leaves once it is idle or its deadline is over.
enum class NodeScheduling : std::uint16_t { kSchedulable, kCordoned, kDraining };
inline bool ended(JobState state) { return state != JobState::kPending && state != JobState::kRunning; }
// The cause of the ends of processes and actors on a node that was drained.
Error node_drained(NodeId node);

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
  std::string endpoint;                           // where the actor's process takes calls; empty until the actor lives
  std::string pending_reason;                     // why the actor is not placed yet
  std::map<std::string, std::string> attributes;  // texts that the actor itself sets, such as a ShardActor's bytes
  std::optional<Error> cause;                     // why the actor is dead, or its process ended
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.class_name, ClassName);
    SHOAL_FIELD(v.state, State, 5, "actor state");
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.gang, Gang);
    SHOAL_FIELD(v.rank, Rank);
    SHOAL_FIELD(v.world_size, WorldSize);
    SHOAL_FIELD(v.generation, Generation);
    SHOAL_FIELD(v.endpoint, Endpoint);
    SHOAL_FIELD(v.pending_reason, PendingReason);
    SHOAL_FIELD(v.attributes, Attributes);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
    SHOAL_FIELD(v.detached, Detached);
    SHOAL_FIELD(v.max_restarts, MaxRestarts);
    SHOAL_FIELD(v.max_task_retries, MaxTaskRetries);
    SHOAL_FIELD(v.num_restarts, NumRestarts);
    SHOAL_FIELD(v.previous, Previous);
  }
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

  // Ray's name of the resource that a node has if a head runs on its host. Without another head the cluster ends with that node.
  static constexpr const char* kBesideHead = "node:__internal_head__";
  bool beside_head() const { return total.units(kBesideHead) > 0; }

  NodeScheduling scheduling() const {
    return drain_until_unix_ms != 0 ? NodeScheduling::kDraining : cordoned ? NodeScheduling::kCordoned : NodeScheduling::kSchedulable;
  }
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.host, Host);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.state, State, 2, "node state");
    SHOAL_FIELD(v.endpoint, Endpoint);
    SHOAL_FIELD(v.total, Total);
    SHOAL_FIELD(v.available, Available);
    SHOAL_FIELD(v.labels, Labels);
    SHOAL_FIELD(v.cordoned, Cordoned);
    SHOAL_FIELD(v.drain_until_unix_ms, DrainUntilUnixMs);
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
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.state, State, kNumWorkerStates, "worker state");
    SHOAL_FIELD(v.role, Role);
    SHOAL_FIELD(v.rank, Rank);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
  }
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
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.state, State, 5, "job state");
    SHOAL_FIELD(v.driver_pid, DriverPid);
    SHOAL_FIELD(v.num_workers, NumWorkers);
    SHOAL_FIELD(v.started_unix_ms, StartedUnixMs);
    SHOAL_FIELD(v.ended_unix_ms, EndedUnixMs);
    SHOAL_FIELD(v.exit_code, ExitCode);
    SHOAL_FIELD(v.pending_reason, PendingReason);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
    SHOAL_FIELD(v.submission, Submission);
  }
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
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
    SHOAL_FIELD(v.strategy, Strategy, 4, "strategy");
    SHOAL_FIELD(v.state, State, 4, "group state");
    SHOAL_FIELD(std::tie(v.bundles, v.nodes), Bundles, GroupSpec::kMaxBundles, "bundles");
    SHOAL_FIELD(v.pending_reason, PendingReason);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
  }
};

struct ClusterStatus {
  std::string session;  // the session folder
  pid_t head_pid = 0;
  Resources total, available;            // sums; they have up to RowBounds::kMaxResources names, a node's own name last
  std::uint32_t resources_left_out = 0;  // number of names that the sums leave out
  std::uint32_t num_nodes = 0, num_workers = 0, num_actors = 0, num_jobs = 0;
  // Actors, groups and jobs that wait, with the reasons; equal ones make one text, and the texts are bounded. `num_pending`: all that wait.
  std::vector<std::string> pending;
  std::uint32_t num_pending = 0;
  std::vector<std::string> set_aside;  // stored rows that this head could not use, with the reasons; bounded
  std::uint32_t num_set_aside = 0;
  std::string store;               // name of the store that the head uses
  std::vector<std::string> heads;  // endpoints, the leading head's first; empty with one head
  // True if workers of functions hold resources for which other jobs wait. Only workers of the job that requested this status count.
  bool wanted_back = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.session, Session);
    SHOAL_FIELD(v.head_pid, HeadPid);
    SHOAL_FIELD(v.total, Total, Sums{});
    SHOAL_FIELD(v.available, Available, Sums{});
    SHOAL_FIELD(v.num_nodes, NumNodes);
    SHOAL_FIELD(v.num_workers, NumWorkers);
    SHOAL_FIELD(v.num_actors, NumActors);
    SHOAL_FIELD(v.num_jobs, NumJobs);
    SHOAL_FIELD(v.pending, Pending);
    SHOAL_FIELD(v.store, Store);
    SHOAL_FIELD(v.heads, Heads);
    SHOAL_FIELD(v.wanted_back, WantedBack);
    SHOAL_FIELD(v.resources_left_out, ResourcesLeftOut);
    SHOAL_FIELD(v.num_pending, NumPending);
    SHOAL_FIELD(v.set_aside, SetAside);
    SHOAL_FIELD(v.num_set_aside, NumSetAside);
  }
};

}  // namespace shoal::actors
