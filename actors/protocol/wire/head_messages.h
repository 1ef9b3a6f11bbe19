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
#include "actors/protocol/wire/from_bytes.h"

namespace shoal::actors {

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
  std::vector<std::string> heads;  // endpoints of all heads, in a cluster with several
};
// The endpoints of the heads, in the order in which to try them.
struct Heads {
  std::vector<std::string> endpoints;
  bool moved = false;  // another head leads now: the first of these
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
  std::uint64_t deadline_ms = 0;  // time until the end of a drain
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
  // The actor is a worker of functions: the actors that it made pass to the process that kills it (ActorClient::retire).
  bool hand_on = false;
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
  std::uint64_t after = 0;  // list only rows with ids after this one
};
struct ListReply {
  std::vector<ActorRow> actors;
  std::vector<NodeRow> nodes;
  std::vector<WorkerRow> workers;
  std::vector<JobRow> jobs;
  std::vector<GroupRow> groups;
  std::uint64_t last = 0;  // id of the last row, for ListRequest::after; 0: the list is complete
};
struct Warning {
  std::string text;
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

// Collects all rows, page after page. ask(body) sends one ListRequest and returns Result<ListReply>.
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
