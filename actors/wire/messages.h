// Every control message as a plain value, to bytes and back. Code above this never sees a Cap'n Proto reader or builder.
//
// to_bytes never fails. from_bytes returns InvalidArgument for hostile input: unknown enums, lists beyond their bound, bad pointers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/cluster/object_key.h"
#include "runtime/core/bytes.h"

namespace shoal::actors {

// Methods by the process that answers them; methods.h declares their requests and replies. The numbers are part of the protocol: never reuse
// one.
enum class Method : std::uint16_t {
  // to the head
  kRegisterNode = 1,
  kHeartbeat = 2,     // notice, empty
  kWorkerUpdate = 3,  // notice
  kEndDriver = 4,     // notice, JobRef: a driver leaves in order
  kRegisterDriver = 5,
  kCreateGang = 6,     // answered when accepted, with FoundActor if get_if_exists found one; ActorUpdate notices follow
  kKillActor = 7,      // KillActor
  kHostActor = 8,      // answered when the gang is complete
  kSetAttributes = 9,  // notice
  kSubmitJob = 10,     // JobRef; JobUpdate notices follow
  kStopJob = 11,
  kList = 12,
  kStatus = 13,
  kShutdown = 14,
  kWatchJob = 15,         // JobRef: JobUpdate notices follow
  kWatchActor = 16,       // ActorRef: the row now, ActorUpdate notices follow
  kFindActor = 17,        // FindActor: likewise
  kCreateGroup = 18,      // answered when accepted; GroupUpdate notices follow
  kRemoveGroup = 19,      // notice, GroupRef
  kWatchGroup = 20,       // GroupRef: the row now, GroupUpdate notices follow
  kFindGroup = 21,        // FindActor: likewise
  kGetCreationSpec = 22,  // GetCreationSpec
  kWorkerBlocked = 23,    // notice
  kWorkerLeaves = 24,     // GetCreationSpec's body; a request, so that the head has it before the worker ends
  kWatchNode = 25,        // NodeRef: its row now, as ListReply; a NodeGone notice when it is dead
  kDeleteJob = 28,        // JobRef: forgets a job that has ended
  kSetNodeScheduling = 29,
  kSignCertificate = 40,  // from a host that joins
  kPutPackage = 41,       // a part for the head to store, parts in order; without data: whether the package is complete
  kGetPackage = 42,       // a part without data, answered with the part that begins at its offset; NotFound
  // from the head to a client, notices
  kActorUpdate = 30,  // ActorRow
  kJobUpdate = 31,    // JobRow
  kWarning = 32,
  kGroupUpdate = 33,  // GroupRow
  kNodeGone = 35,     // NodeGone
  kJobOnNode = 36,    // ListReply with one node: the watched job has workers there
  // from the head to a node, and from a node to its clients, a notice
  kHeads = 34,
  // to a node
  kStartWorker = 50,
  kStopWorker = 51,
  kEndJob = 52,  // JobRef: kill its processes, free its memory
  kKillHosted = 53,
  kAttach = 54,
  kOpenArena = 55,
  kDropArena = 56,
  kPutObject = 57,   // notice with a descriptor, or with an error as payload if there will be no object
  kGetObject = 58,   // waits for the object; answered with a descriptor and its contents as ObjectRef, counted for the asker
  kDropObject = 59,  // notice, ObjectRef
  kFollowLogs = 60,
  kReadLog = 61,
  kWorkerReady = 62,  // WorkerUpdate, from the worker itself
  kEndNode = 63,
  kSyncLogs = 65,      // answered after all lines that workers have printed by now
  kCountObjects = 66,  // notice; from another node a request
  kMakeRoom = 67,      // notice that an object needs memory; the node forwards it to its other clients
  kMoveObject = 68,    // notice, ObjectRef with a descriptor of its new place
  kFreePort = 64,      // an unused TCP port on the node's host
  kReadTaskLog = 76,
  kLastMetrics = 78,   // from a process that ends in order and waits for the answer
  kReadLogFile = 139,  // answered with text as payload
  // to a node, which forwards it to the object's home, which forwards it to the process that made the call. The process cancels the call
  // and answers, with an error if it refuses. Success if there is nothing left to cancel.
  kCancelResult = 77,
  // to a node, which asks its processes, and to the head for metrics only. Replies are payloads, since a body is too small: NodeReport of
  // a node, ProcessReport of a process, ReportedMetrics of the head.
  kInspect = 75,
  // from a node to another
  kMeetNode = 70,  // first message of a connection
  // waits for the object; answered with ObjectRef (total bytes, contents) and the part as payload, or a descriptor on one host
  kPullObject = 71,
  // from a node to a client, notices
  kWorkerExited = 80,  // WorkerUpdate
  kLogLines = 81,
  kKillHere = 82,  // KillHosted, to the process that hosts the actor
  // to an actor
  kCall = 100,
  kCancelCall = 101,  // notice, for a call that came over this connection
  // Notices with argument values that do not fit into their call, which follows over the same connection as kCallOfArguments. `first`
  // values were sent before these; first = 0 discards earlier ones.
  kArguments = 122,
  kCallOfArguments = 123,
  // from an actor to its callers, notices
  kItem = 124,  // that a call yields, sent over the call's connection before its answer
  // Without a body, to each caller once the actor is made, before any other message of its own. A caller without it may assume that none of
  // its calls has begun.
  kMade = 125,
};

template <class Enum>
constexpr std::uint16_t number(Enum method) {
  return static_cast<std::uint16_t>(method);
}

struct RegisterNode {
  NodeId id;
  std::string host;
  pid_t pid = 0;
  std::string endpoint;
  Resources resources;
  std::map<std::string, std::string> labels;
};
struct RegisteredNode {
  std::string session;
  std::uint32_t heartbeat_ms = 0;
  std::vector<std::string> heads;  // endpoints of all heads, where there are several
};
// Endpoints of the heads, to be tried in turn.
struct Heads {
  std::vector<std::string> endpoints;
  bool moved = false;  // another head leads: the first of these
};
struct WorkerUpdate {
  WorkerId worker;
  WorkerState state = WorkerState::kStarting;
  pid_t pid = 0;
  std::string endpoint;
  std::int32_t shell_code = 0;
  std::optional<Error> cause;
  JobId job;
  std::string role;
};
struct RegisterDriver {
  std::string name;
  pid_t pid = 0;
  JobId job;
};
struct RegisteredDriver {
  JobId job;
  std::string node;
  std::string session;
};
struct StopJob {
  JobId job;
  bool force = false;
};
struct SetNodeScheduling {
  NodeId node;
  NodeScheduling scheduling = NodeScheduling::kSchedulable;
  std::uint64_t deadline_ms = 0;  // from now; for a drain
  static constexpr std::uint64_t kMaxDeadlineMs = std::uint64_t{7} * 24 * 3600 * 1000;
};
struct JobRef {
  JobId job;
};
struct ActorRef {
  ActorId actor;
};
struct KillActor {
  ActorId actor;
  bool restart = false;
  bool hand_on = false;  // see Session::retire
};
struct GetCreationSpec {
  WorkerId worker;
};
struct WorkerBlocked {
  WorkerId worker;
  bool blocked = false;
};
struct GroupRef {
  GroupId group;
};
struct FindActor {
  std::string name, name_space;
};
struct FoundActor {
  ActorRow row;
  std::string handle;
};
struct HostActor {
  ActorId actor;
  std::string class_name;
  std::string gang_key;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  WorkerId worker;
  JobId job;
  pid_t pid = 0;
  std::string endpoint;
  std::map<std::string, std::string> attributes;
};
struct HostedActor {
  GangId gang;
  std::uint64_t generation = 0;
  std::vector<ActorId> members;
};
struct SetAttributes {
  ActorId actor;
  std::map<std::string, std::string> attributes;
};
struct ListRequest {
  enum class What : std::uint16_t { kActors, kNodes, kWorkers, kJobs, kGroups };
  What what = What::kActors;
  JobId job;
  std::uint64_t after = 0;  // an id: only later rows
};
struct ListReply {
  std::vector<ActorRow> actors;
  std::vector<NodeRow> nodes;
  std::vector<WorkerRow> workers;
  std::vector<JobRow> jobs;
  std::vector<GroupRow> groups;
  std::uint64_t last = 0;  // the id to ask again after; 0: complete
};
struct Warning {
  std::string text;
};
struct StartWorker {
  WorkerId worker;
  JobId job;
  Launch launch;
  std::int32_t rank = -1;
  std::string label;
  std::int64_t gpu_units = -1;  // units of GPUs that it may use; below 0: the node does not restrict it
  bool run_again = false;       // its function, or its restartable actor, runs again if it dies
};
struct StopWorker {
  WorkerId worker;
  std::int32_t signal = 15;
  std::uint32_t grace_ms = 0;
};
struct KillHosted {
  WorkerId worker;
  pid_t pid = 0;
  ActorId actor;
  std::optional<Error> cause;
};
struct Attach {
  WorkerId worker;
  JobId job;
  std::string role;
};
struct Attached {
  NodeId node;
  JobId job;
  std::string head;
  std::string session;
  std::string host;
  WorkerId worker;
  std::int32_t member = -1;  // on the board of objects' memory (runtime/shm/usage_board.h)
  std::string spill = {};    // folder for spilled objects
};
struct OpenArena {
  std::string key;
  std::uint64_t bytes = 0;
  JobId job;
  std::int32_t member = -1;
};
struct OpenedArena {
  bool created = false;
};
struct ArenaRef {
  std::string key;
  JobId job;
};
struct ObjectRef {
  ObjectId id;
  JobId job;
  std::uint64_t bytes = 0;
  WorkerId owner;                   // the process that puts it, or will put it
  std::vector<ObjectKey> contains;  // objects that it refers to
  NodeId home = {};                 // 0: the node that is asked
};
struct PullObject {
  ObjectRef object;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct MakeRoom {
  std::uint64_t bytes = 0;
};
struct CountObjects {
  struct Change {
    ObjectKey object;
    WorkerId holder;  // 0: the sender
    std::int64_t by = 0;
    NodeId holder_node = {};  // 0: the receiving node
    enum class Kind : std::uint16_t {
      kCount,
      kCountContents,  // counts each object inside this one
      kWatch,          // the holder's node is to report its end
      kGone,           // the holder is gone
    };
    Kind kind = Kind::kCount;
  };
  static constexpr std::size_t kMaxChanges = 8000;  // as many as fit a message
  std::vector<Change> changes;
  std::uint64_t number = 0;
};
struct MeetNode {
  NodeId caller, called;
};
struct NodeRef {
  NodeId node;
};
struct NodeGone {
  NodeId node;
  Error cause;
};
struct LogLines {
  WorkerId worker;
  std::int32_t rank = -1;
  std::string label;
  std::uint16_t stream = 1;
  pid_t pid = 0;
};
struct FreePort {
  std::uint16_t port = 0;
};
struct ReadLog {
  WorkerId worker;
  std::uint16_t stream = 1;
  std::uint64_t tail_bytes = 0;
};

Bytes to_bytes(const RegisterNode& m);
Bytes to_bytes(const RegisteredNode& m);
Bytes to_bytes(const WorkerUpdate& m);
Bytes to_bytes(const Heads& m);
Bytes to_bytes(const RegisterDriver& m);
Bytes to_bytes(const RegisteredDriver& m);
Bytes to_bytes(const GangSpec& m);
Bytes to_bytes(const JobSpec& m);
Bytes to_bytes(const StopJob& m);
Bytes to_bytes(const SetNodeScheduling& m);
Bytes to_bytes(const JobRef& m);
Bytes to_bytes(const ActorRef& m);
Bytes to_bytes(const KillActor& m);
Bytes to_bytes(const GetCreationSpec& m);
Bytes to_bytes(const WorkerBlocked& m);
Bytes to_bytes(const GroupSpec& m);
Bytes to_bytes(const GroupRef& m);
Bytes to_bytes(const GroupRow& m);
Bytes to_bytes(const FindActor& m);
Bytes to_bytes(const FoundActor& m);
Bytes to_bytes(const HostActor& m);
Bytes to_bytes(const HostedActor& m);
Bytes to_bytes(const SetAttributes& m);
Bytes to_bytes(const ListRequest& m);
Bytes to_bytes(const ListReply& m);
Bytes to_bytes(const ClusterStatus& m);
Bytes to_bytes(const ActorRow& m);
Bytes to_bytes(const JobRow& m);
Bytes to_bytes(const Warning& m);
Bytes to_bytes(const StartWorker& m);
Bytes to_bytes(const StopWorker& m);
Bytes to_bytes(const KillHosted& m);
Bytes to_bytes(const Attach& m);
Bytes to_bytes(const Attached& m);
Bytes to_bytes(const OpenArena& m);
Bytes to_bytes(const OpenedArena& m);
Bytes to_bytes(const ArenaRef& m);
Bytes to_bytes(const ObjectRef& m);
Bytes to_bytes(const PullObject& m);
Bytes to_bytes(const CountObjects& m);
Bytes to_bytes(const MeetNode& m);
Bytes to_bytes(const NodeRef& m);
Bytes to_bytes(const NodeGone& m);
Bytes to_bytes(const MakeRoom& m);
Bytes to_bytes(const LogLines& m);
Bytes to_bytes(const FreePort& m);
Bytes to_bytes(const ReadLog& m);

// from_bytes<T>(bytes) for each T above.
template <class T>
Result<T> from_bytes(const Bytes& bytes);

// All rows, page after page: ask(body) -> Result<ListReply>.
template <class Ask>
Result<ListReply> list_all(ListRequest request, const Ask& ask) {
  ListReply out;
  do {
    SHOAL_TRY(ListReply page, ask(to_bytes(request)));
    const auto append = [](auto& to, auto& rows) { std::move(rows.begin(), rows.end(), std::back_inserter(to)); };
    append(out.actors, page.actors);
    append(out.nodes, page.nodes);
    append(out.workers, page.workers);
    append(out.jobs, page.jobs);
    append(out.groups, page.groups);
    request.after = page.last;
  } while (request.after != 0);
  return out;
}

}  // namespace shoal::actors
