// Messages to the head, and its answers and notices, as plain values, with the methods that carry them (message.h). node_messages.h has
// the messages to nodes.
//
// Code that uses these messages never sees a Cap'n Proto reader or builder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/cluster/specs.h"
#include "actors/protocol/wire/message.h"

namespace shoal::actors {

// Rows and requests (actors/protocol/cluster) that are messages of their own.
SHOAL_MESSAGE(GangSpec, CreateGang);
SHOAL_MESSAGE(JobSpec, SubmitJob);
SHOAL_MESSAGE(GroupSpec, CreateGroup);
SHOAL_MESSAGE(GroupRow, GroupRow);
SHOAL_MESSAGE(ClusterStatus, StatusReply);
SHOAL_MESSAGE(ActorRow, ActorRow);
SHOAL_MESSAGE(JobRow, JobRow);

struct RegisterNode {
  NodeId id;
  std::string host;
  pid_t pid = 0;
  std::string endpoint;
  Resources resources;
  std::map<std::string, std::string> labels;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.host, Host);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.endpoint, Endpoint);
    SHOAL_FIELD(v.resources, Resources);
    SHOAL_FIELD(v.labels, Labels);
  }
};
SHOAL_MESSAGE(RegisterNode, RegisterNode);
struct RegisteredNode {
  std::string session;
  std::uint32_t heartbeat_ms = 0;
  std::vector<std::string> heads;  // endpoints of all heads, in a cluster with several
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.session, Session);
    SHOAL_FIELD(v.heartbeat_ms, HeartbeatMs);
    SHOAL_FIELD(v.heads, Heads);
  }
};
SHOAL_MESSAGE(RegisteredNode, RegisteredNode);
// The endpoints of the heads, in the order in which to try them.
struct Heads {
  std::vector<std::string> endpoints;
  bool moved = false;  // another head leads now: the first of these
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.endpoints, Endpoints);
    SHOAL_FIELD(v.moved, Moved);
  }
};
SHOAL_MESSAGE(Heads, Heads);
struct WorkerUpdate {
  WorkerId worker;
  WorkerState state = WorkerState::kStarting;
  pid_t pid = 0;
  std::string endpoint;
  std::int32_t shell_code = 0;
  std::optional<Error> cause;
  JobId job;
  std::string role;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.state, State, kNumWorkerStates, "worker state");
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.endpoint, Endpoint, RowText{"endpoint"});
    SHOAL_FIELD(v.shell_code, ShellCode);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.role, Role, RowText{"role"});
  }
};
SHOAL_MESSAGE(WorkerUpdate, WorkerUpdate);
struct RegisterDriver {
  std::string name;
  pid_t pid = 0;
  JobId job;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name, RowText{"name"});
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.job, Job);
  }
};
SHOAL_MESSAGE(RegisterDriver, RegisterDriver);
struct RegisteredDriver {
  JobId job;
  std::string node;
  std::string session;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.session, Session);
  }
};
SHOAL_MESSAGE(RegisteredDriver, RegisteredDriver);
struct StopJob {
  JobId job;
  bool force = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.force, Force);
  }
};
SHOAL_MESSAGE(StopJob, StopJob);
struct SetNodeScheduling {
  NodeId node;
  NodeScheduling scheduling = NodeScheduling::kSchedulable;
  std::uint64_t deadline_ms = 0;  // time until the end of a drain
  static constexpr std::uint64_t kMaxDeadlineMs = std::uint64_t{7} * 24 * 3600 * 1000;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.scheduling, Scheduling, 3, "scheduling of a node");
    SHOAL_FIELD(v.deadline_ms, DeadlineMs);
    io.check(v);
  }
};
SHOAL_MESSAGE(SetNodeScheduling, SetNodeScheduling);
struct JobRef {
  JobId job;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.job, Job); }
};
SHOAL_MESSAGE(JobRef, JobRef);
struct ActorRef {
  ActorId actor;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.actor, Actor); }
};
SHOAL_MESSAGE(ActorRef, ActorRef);
struct KillActor {
  ActorId actor;
  bool restart = false;
  // The actor is a worker of functions: the actors that it made pass to the process that kills it (ActorClient::retire).
  bool hand_on = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_FIELD(v.restart, Restart);
    SHOAL_FIELD(v.hand_on, HandOn);
  }
};
SHOAL_MESSAGE(KillActor, KillActor);
struct GetCreationSpec {
  WorkerId worker;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.worker, Worker); }
};
SHOAL_MESSAGE(GetCreationSpec, GetCreationSpec);
struct WorkerBlocked {
  WorkerId worker;
  bool blocked = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.blocked, Blocked);
  }
};
SHOAL_MESSAGE(WorkerBlocked, WorkerBlocked);
struct GroupRef {
  GroupId group;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.group, Group); }
};
SHOAL_MESSAGE(GroupRef, GroupRef);
struct FindActor {
  std::string name, name_space;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
  }
};
SHOAL_MESSAGE(FindActor, FindActor);
struct FoundActor {
  ActorRow row;
  std::string handle;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.row, Row);
    SHOAL_FIELD(v.handle, Handle, ClientBytes{});
  }
};
SHOAL_MESSAGE(FoundActor, FoundActor);
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
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_FIELD(v.class_name, ClassName);
    SHOAL_FIELD(v.gang_key, GangKey);
    SHOAL_FIELD(v.rank, Rank);
    SHOAL_FIELD(v.world_size, WorldSize);
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.endpoint, Endpoint);
    SHOAL_FIELD(v.attributes, Attributes);
    io.check(v);
  }
};
SHOAL_MESSAGE(HostActor, HostActor);
struct HostedActor {
  GangId gang;
  std::uint64_t generation = 0;
  std::vector<ActorId> members;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.gang, Gang);
    SHOAL_FIELD(v.generation, Generation);
    SHOAL_FIELD(v.members, Members, GangSpec::kMaxActors, "members of a gang");
  }
};
SHOAL_MESSAGE(HostedActor, HostedActor);
struct SetAttributes {
  ActorId actor;
  std::map<std::string, std::string> attributes;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_FIELD(v.attributes, Attributes);
  }
};
SHOAL_MESSAGE(SetAttributes, SetAttributes);
struct ListRequest {
  enum class What : std::uint16_t { kActors, kNodes, kWorkers, kJobs, kGroups };
  What what = What::kActors;
  JobId job;
  std::uint64_t after = 0;  // list only rows with ids after this one
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.what, What, 5, "kind of list");
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.after, After);
  }
};
SHOAL_MESSAGE(ListRequest, ListRequest);
struct ListReply {
  std::vector<ActorRow> actors;
  std::vector<NodeRow> nodes;
  std::vector<WorkerRow> workers;
  std::vector<JobRow> jobs;
  std::vector<GroupRow> groups;
  std::uint64_t last = 0;  // id of the last row, for ListRequest::after; 0: the list is complete
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.actors, Actors);
    SHOAL_FIELD(v.nodes, Nodes);
    SHOAL_FIELD(v.workers, Workers);
    SHOAL_FIELD(v.jobs, Jobs);
    SHOAL_FIELD(v.groups, Groups);
    SHOAL_FIELD(v.last, Last);
  }
};
SHOAL_MESSAGE(ListReply, ListReply);
struct NodeRef {
  NodeId node;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.node, Node); }
};
SHOAL_MESSAGE(NodeRef, NodeRef);
struct NodeGone {
  NodeId node;
  Error cause = unavailable("");
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.cause, Cause);
  }
};
SHOAL_MESSAGE(NodeGone, NodeGone);
struct Warning {
  std::string text;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.text, Text); }
};
SHOAL_MESSAGE(Warning, Warning);

// Methods that the head answers.
SHOAL_METHOD(kRegisterNode, 1, Signature<RegisterNode, RegisteredNode>);  // a node sends it on each new connection
SHOAL_METHOD(kHeartbeat, 2, Signature<Empty>);            // proof that a node lives: a notice or, with several heads, a request
SHOAL_METHOD(kWorkerUpdate, 3, Signature<WorkerUpdate>);  // a notice: the state of a worker has changed
SHOAL_METHOD(kEndDriver, 4, Signature<JobRef>);           // a notice: a driver leaves in order
SHOAL_METHOD(kRegisterDriver, 5, ChangingSignature<RegisterDriver, RegisteredDriver>);
// Answered once the head accepts the gang, with FoundActor if get_if_exists found an actor. ActorUpdate notices follow.
SHOAL_METHOD(kCreateGang, 6, ChangingSignature<GangSpec, std::optional<FoundActor>>);
SHOAL_METHOD(kKillActor, 7, ChangingSignature<KillActor>);
// Places an actor in the sender's own process; answered once its gang is complete.
SHOAL_METHOD(kHostActor, 8, ChangingSignature<HostActor, HostedActor>);
SHOAL_METHOD(kSetAttributes, 9, Signature<SetAttributes>);         // a notice: attributes that an actor's row shows
SHOAL_METHOD(kSubmitJob, 10, ChangingSignature<JobSpec, JobRef>);  // JobUpdate notices follow
SHOAL_METHOD(kStopJob, 11, ChangingSignature<StopJob>);
SHOAL_METHOD(kList, 12, Signature<ListRequest, ListReply>);
SHOAL_METHOD(kStatus, 13, Signature<std::optional<JobRef>, ClusterStatus>);  // with a job, the reply has resources only
SHOAL_METHOD(kShutdown, 14, Signature<Empty>);
SHOAL_METHOD(kWatchJob, 15, Signature<JobRef, JobRow>);          // JobUpdate notices follow
SHOAL_METHOD(kWatchActor, 16, Signature<ActorRef, ActorRow>);    // ActorUpdate notices follow
SHOAL_METHOD(kFindActor, 17, Signature<FindActor, FoundActor>);  // ActorUpdate notices follow
SHOAL_METHOD(kCreateGroup, 18, ChangingSignature<GroupSpec>);    // answered once the head accepts the group; GroupUpdate notices follow
SHOAL_METHOD(kRemoveGroup, 19, Signature<GroupRef>);             // a notice
SHOAL_METHOD(kWatchGroup, 20, Signature<GroupRef, GroupRow>);    // GroupUpdate notices follow
SHOAL_METHOD(kFindGroup, 21, Signature<FindActor, GroupRow>);    // with the group's name; GroupUpdate notices follow
SHOAL_METHOD(kGetCreationSpec, 22, Signature<GetCreationSpec, FoundActor>);
// A notice when a worker blocks or goes on; a request when it needs its CPUs back before it goes on. Not stored.
SHOAL_METHOD(kWorkerBlocked, 23, Signature<WorkerBlocked>);
SHOAL_METHOD(kWorkerLeaves, 24, Signature<GetCreationSpec, Empty, Effect::kFact>);  // a worker waits for the answer before it ends
SHOAL_METHOD(kWatchNode, 25, Signature<NodeRef, ListReply>);  // answered with the node's row; a NodeGone notice follows
SHOAL_METHOD(kDeleteJob, 28, ChangingSignature<JobRef>);      // makes the head forget a job that has ended
SHOAL_METHOD(kSetNodeScheduling, 29, ChangingSignature<SetNodeScheduling>);

// Notices from the head to a client.
SHOAL_METHOD(kActorUpdate, 30, Signature<ActorRow>);  // a watched actor has changed
SHOAL_METHOD(kJobUpdate, 31, Signature<JobRow>);      // a watched job has changed
SHOAL_METHOD(kWarning, 32, Signature<Warning>);
SHOAL_METHOD(kGroupUpdate, 33, Signature<GroupRow>);  // a watched placement group has changed
SHOAL_METHOD(kHeads, 34, Signature<Heads>);           // also from the head to a node, and from a node to its clients
SHOAL_METHOD(kNodeGone, 35, Signature<NodeGone>);     // a watched node is dead
SHOAL_METHOD(kJobOnNode, 36, Signature<ListReply>);   // one node, on which a watched job has workers

// Collects all rows, page after page. request_page(body) sends one ListRequest and returns Result<ListReply>.
template <class Request>
Result<ListReply> list_all(ListRequest request, const Request& request_page) {
  ListReply out;
  do {
    SHOAL_TRY(ListReply page, request_page(to_bytes(request)));
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
