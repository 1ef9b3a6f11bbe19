// The events of the cluster state, and the function that decides each. on() decides an event. It returns the answer to the request behind
// it, and adds the actions to the turn (parts.h). An error that a comment names is such an answer.
//
// An event refers to its message, and so lives for one call of step().
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

// Checks silent nodes, drains, windows and pending entries. The head sends it a few times a second.
struct Tick {};
void on(Parts& s, const Tick& event);

// ---- nodes
// A node registered. A second event with the same id means that the node reconnected. Requests that could not reach it are repeated, at
// once or when the node reports the workers concerned. Returns Unavailable/Fenced if the node was given up. It then has to end its workers,
// which were declared dead, and to register under a new id.
struct NodeJoined {
  const actors::RegisterNode& node;
};
struct NodeBeat {
  NodeId node;
};
// The node's connection broke: nothing is placed there until it joins again or is given up.
struct NodeAway {
  NodeId node;
};
struct NodeLost {
  NodeId node;
  const Error& cause;
};
// A cordoned node takes no new work. A draining node also has its restartable actors moved to other nodes, and leaves once it runs nothing
// or at its deadline. Returns NotFound for an unknown or dead node, InvalidArgument if the node was asked to leave already.
struct SchedulingSet {
  const actors::SetNodeScheduling& wish;
};
Result<void> on(Parts& s, const NodeJoined& event);
void on(Parts& s, const NodeBeat& event);
void on(Parts& s, const NodeAway& event);
void on(Parts& s, const NodeLost& event);
Result<void> on(Parts& s, const SchedulingSet& event);

// ---- workers
// `from` reports the state of one of its workers. A report of an unknown worker that runs (a driver, a rank under torchrun) adds its row.
struct WorkerUpdated {
  NodeId from;
  const actors::WorkerUpdate& update;
};
// The worker is about to end as intended: its actor is not restarted.
struct WorkerLeaves {
  WorkerId worker;
};
// `blocked`: the worker's task waits for other tasks, and its CPUs are lent to them. If it is false, the worker takes its CPUs back at
// once, even if more are in use then than the node has.
struct WorkerBlocked {
  WorkerId worker;
  bool blocked;
};
// A worker asks for its lent CPUs back. Returns ResourceExhausted while they are in use, or others wait for them.
struct WorkerResumes {
  WorkerId worker;
};
// StartWorkerOn failed, or its outcome is unknown.
struct WorkerNotStarted {
  WorkerId worker;
  int exit_code;
  const Error& cause;
};
// The start did not reach the node, or the connection broke meanwhile. When the node joins again, it reports the worker,
// unless the start was lost.
struct WorkerNotReached {
  WorkerId worker;
  const Error& cause;
};
void on(Parts& s, const WorkerUpdated& event);
void on(Parts& s, const WorkerLeaves& event);
void on(Parts& s, const WorkerBlocked& event);
Result<void> on(Parts& s, const WorkerResumes& event);
void on(Parts& s, const WorkerNotStarted& event);
void on(Parts& s, const WorkerNotReached& event);

// ---- jobs
struct DriverJoined {
  const actors::RegisterDriver& driver;
};
// The driver ended in order: the job's actors and groups end, and the job has succeeded.
struct DriverEnded {
  JobId job;
};
// The driver's process is gone. Ignored for a driver that a node has reported: that node reports its end and exit code.
struct DriverGone {
  JobId job;
};
struct JobSubmitted {
  const actors::JobSpec& spec;
};
struct PortFound {
  JobId job;
  const Result<std::uint16_t>& port;
};
// FindPortOn did not reach the node: the job waits for a place again.
struct PortNotRequested {
  JobId job;
};
struct JobStopped {
  JobId job;
  bool force;
};
// Deletes an ended job's row. Returns InvalidArgument if the job has not ended.
struct JobDeleted {
  JobId job;
};
JobId on(Parts& s, const DriverJoined& event);
void on(Parts& s, const DriverEnded& event);
void on(Parts& s, const DriverGone& event);
Result<JobId> on(Parts& s, const JobSubmitted& event);
void on(Parts& s, const PortFound& event);
void on(Parts& s, const PortNotRequested& event);
Result<void> on(Parts& s, const JobStopped& event);
Result<void> on(Parts& s, const JobDeleted& event);

// ---- actors
// A process asks for actors. If one of them names a living actor, that actor is the answer where the request allows it (get_if_exists), and
// nothing is made. Otherwise returns InvalidArgument/NameTaken. Returns Cancelled/CreatorEnded if the process that asks has ended.
struct GangRequested {
  const actors::GangSpec& spec;
};
// `restart`: ends only the process, so that the actor restarts if it may.
struct ActorKilled {
  ActorId actor;
  bool restart = false;
};
// Ends a worker of remote functions that its keeper no longer needs; the actors that it made end with the keeper instead.
struct WorkerRetired {
  ActorId actor;
};
// A process asks to place an actor that it hosts itself. Once all members of the gang have asked, AnswerHosted answers each.
struct ActorHosted {
  const actors::HostActor& actor;
};
struct AttributesSet {
  const actors::SetAttributes& attributes;
};
Result<std::optional<actors::FoundActor>> on(Parts& s, const GangRequested& event);
Result<void> on(Parts& s, const ActorKilled& event);
Result<void> on(Parts& s, const WorkerRetired& event);
Result<void> on(Parts& s, const ActorHosted& event);
void on(Parts& s, const AttributesSet& event);

// ---- placement groups
// A process asks for a placement group. Returns InvalidArgument/NameTaken if a living group has this name.
struct GroupRequested {
  const actors::GroupSpec& spec;
};
// Removes a placement group, and ends the actors in it.
struct GroupRemoved {
  GroupId group;
};
Result<void> on(Parts& s, const GroupRequested& event);
void on(Parts& s, const GroupRemoved& event);

// ---- requests that are refused while what they have made waits to be stored
struct Created {
  std::vector<ActorId> actors = {};  // all members of gangs
  std::vector<JobId> jobs = {};
  std::vector<GroupId> groups = {};
  std::vector<ActorId> hosted = {};  // in existing processes

  bool empty() const { return actors.empty() && jobs.empty() && groups.empty() && hosted.empty(); }
  void add(const Created& other);
};
// All that `created` names ends because of `why`, as if it had never been requested. A gang in existing processes ends as a whole.
struct RequestsUndone {
  const Created& created;
  const Error& why;
};
// The head drops the actions that start these workers, and refuses the requests of these hosted actors.
struct Undone {
  std::set<WorkerId> workers;
  std::set<ActorId> hosted;
};
Undone on(Parts& s, const RequestsUndone& event);

// The living actor of this name. Returns NotFound if there is none.
Result<actors::FoundActor> find_actor(const Parts& s, const actors::FindActor& request);

}  // namespace shoal::scheduler
