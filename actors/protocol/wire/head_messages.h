// Messages to the head, and its answers and notices, as plain values. node_messages.h has the messages to nodes.
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
#include "actors/protocol/wire/message_bytes.h"

namespace shoal::actors {

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
// The endpoints of the heads, in the order in which to try them.
struct Heads {
  std::vector<std::string> endpoints;
  bool moved = false;  // another head leads now: the first of these
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.endpoints, Endpoints);
    SHOAL_FIELD(v.moved, Moved);
  }
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
struct StopJob {
  JobId job;
  bool force = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.force, Force);
  }
};
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
struct JobRef {
  JobId job;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.job, Job); }
};
struct ActorRef {
  ActorId actor;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.actor, Actor); }
};
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
struct GetCreationSpec {
  WorkerId worker;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.worker, Worker); }
};
struct WorkerBlocked {
  WorkerId worker;
  bool blocked = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.blocked, Blocked);
  }
};
struct GroupRef {
  GroupId group;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.group, Group); }
};
struct FindActor {
  std::string name, name_space;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.name_space, NameSpace);
  }
};
struct FoundActor {
  ActorRow row;
  std::string handle;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.row, Row);
    SHOAL_FIELD(v.handle, Handle, ClientBytes{});
  }
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
struct SetAttributes {
  ActorId actor;
  std::map<std::string, std::string> attributes;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_FIELD(v.attributes, Attributes);
  }
};
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
struct Warning {
  std::string text;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.text, Text); }
};

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
