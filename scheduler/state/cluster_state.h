// The head's decisions as a pure state machine: events in, actions out; no I/O, no clock, no thread.
//
// The head (scheduler/head) passes it the time and every event, and performs its actions in order. Identifiers come from the given Random,
// so a seed and a list of events reproduce the same actions.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/cluster/metrics.h"
#include "actors/wire/messages.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/random.h"
#include "scheduler/state/fair_share_queue.h"
#include "scheduler/state/placement.h"
#include "scheduler/state/resource_index.h"
#include "scheduler/state/rows.h"
#include "scheduler/state/table.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

// ---- actions: what the head shall do ----
struct StartWorkerOn {
  NodeId node;
  actors::StartWorker message;
};
struct StopWorkerOn {
  NodeId node;
  actors::StopWorker message;
};
struct EndJobOn {
  NodeId node;
  JobId job;
};
struct KillHostedOn {
  NodeId node;
  actors::KillHosted message;
};
struct Disconnect {  // a node that was given up; its watchers are notified, and its return under this id is refused as Fenced
  NodeId node;
  Error cause;
};
struct EndNodeOn {  // a drained node
  NodeId node;
};
struct FindPortOn {  // answered by port_found
  NodeId node;
  JobId job;
};
struct NotifyActor {  // sent to the actor's watchers
  actors::ActorRow row;
};
struct NotifyJob {
  actors::JobRow row;
};
struct NotifyGroup {  // sent to the group's watchers
  actors::GroupRow row;
};
struct AnswerHosted {  // the answer to actor_hosted
  ActorId actor;
  Result<actors::HostedActor> result;
};
struct Warn {  // sent to the job's watchers
  JobId job;
  std::string text;
};
struct ForgetJob {
  JobId job;
};
using Action = std::variant<StartWorkerOn, StopWorkerOn, EndJobOn, KillHostedOn, Disconnect, EndNodeOn, FindPortOn, NotifyActor, NotifyJob,
                            NotifyGroup, AnswerHosted, Warn, ForgetJob>;

// One line, for transcripts and logs: "StartWorker node=.. worker=.. rank=0".
std::string to_string(const Action& action);

class ClusterState {
 public:
  struct Options {
    runtime::Duration node_timeout = std::chrono::seconds(5);  // longest time without a heartbeat
    runtime::Duration longest_tick = std::chrono::seconds(1);  // expected time between ticks; the excess is no node's silence
    runtime::Duration warn_after = std::chrono::seconds(1);    // time pending before a warning
    std::uint32_t stop_grace_ms = 3000;                        // from SIGTERM to SIGKILL
    std::size_t max_ended_rows = 1000;                         // per table; the oldest are dropped first
    std::size_t max_listed_rows = 500;                         // per reply to list(), which has to fit a message
    // From its second consecutive death within `early_death` of a start, an actor waits before it restarts: first_pause, then twice as long
    // each time.
    runtime::Duration early_death = std::chrono::seconds(10);
    runtime::Duration first_pause = std::chrono::milliseconds(100), longest_pause = std::chrono::seconds(5);
    // `patience`: time that an entry waits before room is kept for it. The windows are the times for which room is kept.
    runtime::Duration patience = std::chrono::seconds(30), first_window = std::chrono::seconds(10),
                      longest_window = std::chrono::seconds(60);
    std::size_t max_listed_bytes = 200'000;  // per reply to list(), without causes
    std::size_t max_listed_text = 500;       // bytes of each text of a cause in list(); actor() and job() return all of it
  };

  ClusterState(Options options, runtime::Random& random) : options_(options), random_(random) { nodes_.watch(); }

  // Sets the time of the events that follow.
  void advance(runtime::TimePoint now, std::int64_t unix_ms) {
    now_ = now;
    unix_ms_ = unix_ms;
  }
  // Checks silent nodes, drains, windows and pending entries. The head calls it a few times a second.
  void tick();

  // ---- events: nodes ----
  // A second call with the same id means that the node reconnected. Requests that could not reach it are repeated, at once or when the node
  // reports the workers concerned. Unavailable/Fenced if the node was given up: it has to end its workers, which were declared dead, and
  // register under a new id.
  Result<void> node_joined(const actors::RegisterNode& node);
  void node_beat(NodeId node);
  // The node's connection broke: nothing is placed there until it joins again or is given up.
  void node_away(NodeId node);
  void node_lost(NodeId node, const Error& cause);
  // A cordoned node takes no new work. A draining node also has its restartable actors moved to other nodes, and leaves once it runs
  // nothing or at its deadline. NotFound; InvalidArgument once the node was asked to leave.
  Result<void> scheduling_set(const actors::SetNodeScheduling& wish);
  // `from` reports the state of one of its workers. A report of an unknown worker that runs (a driver, a rank under torchrun) adds its row.
  void worker_updated(NodeId from, const actors::WorkerUpdate& update);
  // The worker is about to end as intended: its actor is not restarted.
  void worker_leaves(WorkerId worker);
  // `blocked`: the worker's task waits for others, and its CPUs are lent. `false` takes them back at once, even if CPUs are then
  // overcommitted.
  void worker_blocked(WorkerId worker, bool blocked);
  // A worker asks for its lent CPUs back. ResourceExhausted while they are in use, or others wait for them.
  Result<void> worker_resumes(WorkerId worker);
  // StartWorkerOn failed, or its outcome is unknown.
  void worker_not_started(WorkerId worker, int exit_code, const Error& cause);
  // The start did not reach the node, or the connection broke meanwhile. The node reports the worker when it joins again, unless it is
  // lost.
  void worker_not_reached(WorkerId worker, const Error& cause);

  // ---- events: jobs ----
  JobId driver_joined(const actors::RegisterDriver& driver);
  // The driver ended in order: the job's actors and groups end, and the job has succeeded.
  void driver_ended(JobId job);
  // The driver's process is gone. Ignored for a driver that a node has reported: that node reports its end and exit code.
  void driver_gone(JobId job);
  Result<JobId> job_submitted(const actors::JobSpec& spec);
  void port_found(JobId job, Result<std::uint16_t> port);
  // FindPortOn did not reach the node: the job waits for a place again.
  void port_not_asked(JobId job);
  Result<void> job_stopped(JobId job, bool force);
  // InvalidArgument while the job has not ended.
  Result<void> job_deleted(JobId job);

  // ---- events: actors ----
  // Returns the living actor of this name if the request allows it (get_if_exists); the gang is then not created.
  // InvalidArgument/NameTaken; Cancelled/CreatorEnded.
  Result<std::optional<actors::FoundActor>> gang_requested(const actors::GangSpec& spec);
  // `restart`: ends only the process, so that the actor restarts if it may.
  Result<void> actor_killed(ActorId actor, bool restart = false);
  // Ends a worker of remote functions that its keeper no longer needs; the actors that it made end with the keeper instead.
  Result<void> worker_retired(ActorId worker);
  // AnswerHosted answers each member once the gang is complete.
  Result<void> actor_hosted(const actors::HostActor& actor);
  void attributes_set(const actors::SetAttributes& attributes);

  // ---- events: placement groups ----
  // InvalidArgument/NameTaken.
  Result<void> group_requested(const actors::GroupSpec& spec);
  // Ends the actors in the group.
  void group_removed(GroupId group);

  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  // ---- stored state ----
  // take_changes() returns the rows changed since its last call, to be stored before the actions are performed. change_again() marks rows
  // that could not be stored.
  bool changed() const;
  std::vector<Record> take_changes();
  void change_again(const std::vector<Record>& records);
  std::vector<Record> all_records() const;
  // Continues from stored rows, before any event. Nodes are away until they join again; workers that they do not report then have ended.
  // DataLoss.
  Result<void> restore(const std::vector<Record>& records);

  // ---- queries ----
  // A page of rows ordered by id, after `request.after`.
  actors::ListReply list(const actors::ListRequest& request) const;
  actors::ClusterStatus status() const;
  actors::ClusterStatus resources(JobId asking) const;  // the cheap part of status()
  // Returns true if an entry waits that would fit in place of this job's workers of remote functions and goes before them. It belongs to
  // the same job, or to one with a smaller share.
  bool wanted_back(JobId job) const;
  // Rows by state, and resources by node.
  std::vector<actors::MetricFamily> metrics() const;
  const actors::ActorRow* actor(ActorId id) const;
  // The row of the actor that this worker is to make, and its construction data. NotFound.
  Result<actors::FoundActor> creation_spec(WorkerId worker) const;
  // Returns true if the environment of a living or waiting gang or job contains `text`.
  bool mentions(const std::string& text) const;
  // The living actor of this name. NotFound.
  Result<actors::FoundActor> find(const actors::FindActor& request) const;
  const actors::JobRow* job(JobId id) const;
  const actors::GroupRow* group(GroupId id) const;
  // The living placement group of this name. NotFound.
  Result<actors::GroupRow> find_group(const actors::FindActor& request) const;
  const actors::NodeRow* node(NodeId id) const;
  std::vector<NodeId> alive_nodes() const;
  // Nodes that have, or had, workers of the job.
  std::set<NodeId> nodes_of(JobId job) const;

  // Aborts when the books do not add up: resources taken and given, rows that point at each other. For tests and the
  // simulation.
  void check_invariants() const;

 private:
  using Node = rows::Node;
  using Worker = rows::Worker;
  using Job = rows::Job;
  using Gang = rows::Gang;
  using Group = rows::Group;
  // The source of a worker's resources.
  struct Site {
    NodeId node;
    std::int32_t bundle = -1;  // index in the gang's placement group; -1: no group
  };
  // An entry that waits for room. Jobs take turns: the job with the smallest share of the nodes goes next (fair_share_queue.h), with its
  // earliest entry. An entry that does not fit is passed over. A gang, a group or a submitted job is placed as a whole or not at all.
  struct Pending {
    GangId gang;  // one of the three is set
    JobId job;
    GroupId group;
    runtime::TimePoint since;
    bool explained = false, warned = false;
    runtime::TimePoint not_before{};
    GangId like{};               // for gangs: the first of consecutive ones with equal wants and place; none: waits in a group
    JobId gang_job{};            // for gangs
    std::uint64_t tried_at = 0;  // ResourceIndex::growth() of the last attempt; retried once it has grown
    int windows = 0;             // number of windows so far
    runtime::TimePoint rests_until{};
  };
  // The entry for which room is kept; it may have ended since.
  struct Window {
    Pending whose;
    std::vector<actors::Resources> wants;
    std::string name;
    runtime::TimePoint until;
  };
  struct HostedGang {
    GangId id;
    std::map<std::int32_t, ActorId> members;  // by rank
    std::int32_t world_size = 1;
    bool complete = false;
  };

  std::string why(const Pending& pending) const;
  std::string lacks(const Pending& pending) const;
  std::string unschedulable() const;
  std::string unschedulable(const actors::Where& where) const;
  void drain_nodes();
  void move_actors(NodeId node);
  bool may_restart(const actors::ActorRow& row) const;
  void restore_ended();
  void restore_pending();
  Result<void> restore_holdings();
  // The node has reported all its workers.
  void node_reports(NodeId node);
  actors::StartWorker start_of(const Gang& gang, std::size_t member) const;
  actors::StartWorker start_of(const Job& job, std::size_t rank) const;
  void start_again(const Worker& worker);
  void give_back_places(Job& job);  // for a job that has not started
  // Free and total resources by node.
  const ResourceIndex& resource_index() const;
  // The nodes that a request may use: a reference to the whole room, or a copy of a part.
  class Allowed {
   public:
    explicit Allowed(const NodeResources* all) : all_(all) {}
    explicit Allowed(NodeResources some) : some_(std::move(some)) {}
    const NodeResources& operator*() const { return all_ != nullptr ? *all_ : some_; }
    const NodeResources* operator->() const { return &**this; }

   private:
    const NodeResources* all_ = nullptr;
    NodeResources some_;
  };
  Allowed only(const NodeResources& room, const actors::Where& where, const std::vector<actors::Resources>& wants) const;
  Allowed only(const NodeResources& room, const std::vector<actors::LabelMatch>& labels) const;
  // The bundles without a node, as wants, and the nodes allowed. A bundle's label rules become an extra resource that only matching nodes
  // have.
  struct Asked {
    std::vector<actors::Resources> wants;
    Allowed allowed;
  };
  Asked asked(const Group& group, const NodeResources& room) const;
  Load load() const;
  // Fails if the gang names a node or a placement group that could never hold it.
  Result<void> check_where(const Gang& gang) const;
  std::optional<std::vector<Site>> place_gang(const Gang& gang) const;
  // The node of the process that asked for the gang; none if unknown.
  NodeId home_of(const Gang& gang) const;
  std::optional<std::vector<Site>> place_in_group(const Gang& gang, const Group& group) const;
  std::vector<actors::Resources> missing_bundles(const Group& group) const;
  bool place_group(GroupId id);
  void remove_group(Group& group, const Error& cause);
  void lose_bundles(NodeId node);
  // The entry of this gang for pending_.
  Pending waiting(const Gang& gang) const;
  void explain_pending();
  void explain_newcomer();
  void set_pending_reason(const Pending& pending, const std::string& why);
  JobId job_of(const Pending& pending) const;
  std::string name_of(const Pending& pending) const;
  std::vector<actors::Resources> wants_of(const Pending& pending) const;
  bool waits_in_group(const Pending& pending) const;
  void place_pending();
  bool place_pending_once();
  bool place_one(const Pending& pending);
  // Returns true while the window of another entry keeps the resources that this one asks for.
  bool held_up(const Pending& pending) const;
  bool fits(const Pending& p, const NodeResources& room) const;
  bool could_ever_fit(const Pending& pending) const;
  void look_at_windows();
  runtime::Duration window_length(const Pending& pending) const;
  void start_gang(Gang& gang, const std::vector<Site>& sites);
  void start_job(Job& job);
  WorkerId start_worker(const Site& site, GroupId group, actors::StartWorker message, const actors::Resources& held);
  // The free resources of the bundle or the node that the worker's are taken from.
  actors::Resources& source(const Worker& worker);
  void release(Worker& worker);
  void end_unwanted(const Worker& worker);
  void worker_exited(Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause);
  void stop_processes(const Job& job, int signal);
  void job_process_exited(Job& job, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause);
  JobId open_detached_job(const actors::GangSpec& spec);
  // The worker whose end ends the gang, or none. Cancelled/CreatorEnded.
  Result<WorkerId> creator_of(const actors::GangSpec& spec) const;
  void forget_gang(GangId gang);
  // end_made_by() ends the gangs that a process made; hand_on() gives them to another process.
  void end_made_by(const Worker& worker, const Error& why);
  void hand_on(WorkerId from, WorkerId to);
  // Queues a restart after an unrequested end of the process. Returns false if the actor may not restart.
  bool restart_actor(actors::ActorRow& row, const Worker& worker, std::int32_t shell_code, const Error& cause);
  // Ends the actor, its process, and its whole gang if that still waits.
  void end_actor(actors::ActorRow& row, const Error& cause);
  void kill_actor_row(actors::ActorRow& row, const Error& cause);
  void end_job(Job& job, actors::JobState state);
  Result<void> hosted_again(const actors::HostActor& m, const actors::ActorRow& row);
  void fail_hosted(ActorId actor, const Error& cause);
  void forget_old();
  void overlook_own_silence();
  std::optional<Error> brief(const std::optional<Error>& cause) const;
  void act(Action action) { actions_.push_back(std::move(action)); }

  const Options options_;
  runtime::Random& random_;
  runtime::TimePoint now_{};
  std::optional<runtime::TimePoint> last_tick_;
  std::int64_t unix_ms_ = 0;

  // The stored state. Everything below is derived from it, or is requested again.
  Table<NodeId, Node> nodes_;
  Table<WorkerId, Worker> workers_;
  Table<JobId, Job> jobs_;
  Table<ActorId, actors::ActorRow> actors_;
  Table<GangId, Gang> gangs_;
  Table<GroupId, Group> groups_;

  mutable ResourceIndex resource_index_;  // derived from nodes_
  std::uint64_t next_order_ = 1;
  std::map<std::pair<std::string, std::string>, ActorId> names_;        // (namespace, name): living actor
  std::map<std::pair<std::string, std::string>, GroupId> group_names_;  // (namespace, name)
  std::map<WorkerId, std::set<GangId>> made_by_;                        // living gangs by creator
  std::map<std::pair<JobId, std::string>, HostedGang> hosted_;
  std::map<WorkerId, std::vector<ActorId>> hosted_in_;
  std::map<JobId, runtime::TimePoint> unattached_;  // after a restore: deadlines for drivers to join a node
  std::deque<Pending> pending_;
  int looks_ = 0;  // searches of all nodes since the last tick, to explain pending entries
  Shares shares_;
  std::optional<Window> window_;
  std::deque<WorkerId> ended_workers_;
  std::deque<ActorId> ended_actors_;
  std::deque<JobId> ended_jobs_;
  std::deque<GroupId> removed_groups_;
  std::vector<Action> actions_;
};

}  // namespace shoal::scheduler
