// What the head knows and decides: a pure machine. Events in, actions out; no I/O, no clock, no thread.
//
// The head (scheduler/head) tells it the time and every event, and performs its actions in order. Identifiers come from
// the Random it is given, so a seed and a list of events give the same actions again.
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
#include "scheduler/state/placement.h"
#include "scheduler/state/rooms.h"
#include "scheduler/state/rows.h"
#include "scheduler/state/table.h"
#include "scheduler/state/turns.h"
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
struct Disconnect {  // given up: when it comes back it hears that it is fenced; others that have to do with it are told
  NodeId node;
  Error cause;
};
struct EndNodeOn {  // it is drained
  NodeId node;
};
struct FindPortOn {  // answered by port_found
  NodeId node;
  JobId job;
};
struct TellActor {  // to whoever watches it
  actors::ActorRow row;
};
struct TellJob {
  actors::JobRow row;
};
struct TellGroup {  // to whoever watches it
  actors::GroupRow row;
};
struct TellHosted {  // the answer to actor_hosted
  ActorId actor;
  Result<actors::HostedActor> result;
};
struct Warn {  // to the job's driver
  JobId job;
  std::string text;
};
struct ForgetJob {
  JobId job;
};
using Action = std::variant<StartWorkerOn, StopWorkerOn, EndJobOn, KillHostedOn, Disconnect, EndNodeOn, FindPortOn, TellActor, TellJob,
                            TellGroup, TellHosted, Warn, ForgetJob>;

// One line, for transcripts and logs: "StartWorker node=.. worker=.. rank=0".
std::string to_string(const Action& action);

class ClusterState {
 public:
  struct Options {
    runtime::Duration node_timeout = std::chrono::seconds(5);  // without a heartbeat
    runtime::Duration longest_tick = std::chrono::seconds(1);  // from one to the next; time beyond it makes no node silent
    runtime::Duration warn_after = std::chrono::seconds(1);    // pending
    std::uint32_t stop_grace_ms = 3000;                        // between SIGTERM and SIGKILL
    std::size_t max_ended_rows = 1000;                         // of each table; the oldest go first
    std::size_t max_listed_rows = 500;                         // in one reply to list(), which has to fit a message
    // An actor that ended within this time of its start waits before it is started again, each time twice as long.
    runtime::Duration early_death = std::chrono::seconds(10);
    runtime::Duration first_pause = std::chrono::milliseconds(100), longest_pause = std::chrono::seconds(5);
    // Of what waits, before room is kept for it, and for how long it is.
    runtime::Duration patience = std::chrono::seconds(30), first_window = std::chrono::seconds(10),
                      longest_window = std::chrono::seconds(60);
    std::size_t max_listed_bytes = 200'000;  // likewise, without causes
    std::size_t max_listed_text = 500;       // bytes of a cause there; actor() and job() have all of it
  };

  ClusterState(Options options, runtime::Random& random) : options_(options), random_(random) { nodes_.watch(); }

  // The time of the next event.
  void advance(runtime::TimePoint now, std::int64_t unix_ms) {
    now_ = now;
    unix_ms_ = unix_ms;
  }
  // Looks at what waits and who is silent. To be called a few times a second.
  void tick();

  // ---- events: nodes ----
  // Again with the same id: its connection broke and it is back; what was to reach it meanwhile is said again, then or when it
  // tells of the workers concerned. Unavailable/Fenced when it was given up meanwhile: it
  // has to end its workers, which were declared dead, and to come back as another node.
  Result<void> node_joined(const actors::RegisterNode& node);
  void node_beat(NodeId node);
  // Its connection broke: nothing is placed there until it joins again or is given up.
  void node_away(NodeId node);
  void node_lost(NodeId node, const Error& cause);
  // Cordoned: it takes no new work. Draining: besides, actors that may restart are moved to others, and it leaves once nothing runs
  // there, or at its deadline. NotFound; InvalidArgument once it was told to leave.
  Result<void> node_duty_set(const actors::SetNodeDuty& wish);
  // `from` answers for its workers. An update of an unknown worker that runs (a driver, a rank under torchrun) makes it
  // known.
  void worker_updated(NodeId from, const actors::WorkerUpdate& update);
  // It is about to end, as it or its user meant it: its actor is not started again.
  void worker_leaves(WorkerId worker);
  // Its task waits for others, which may have its CPUs until it goes on: then more may run at once than there are CPUs.
  void worker_blocked(WorkerId worker, bool blocked);
  // One whose CPUs are lent wants them again. ResourceExhausted when there is no room for them now, or others wait for it.
  Result<void> worker_resumes(WorkerId worker);
  // StartWorkerOn failed, or nobody knows what came of it.
  void worker_not_started(WorkerId worker, int exit_code, const Error& cause);
  // The connection to its node was gone, or broke meanwhile: the node tells of it when it is back (node_joined), unless it is lost.
  void worker_not_reached(WorkerId worker, const Error& cause);

  // ---- events: jobs ----
  JobId driver_joined(const actors::RegisterDriver& driver);
  // Left in order: what it owned ends, and that is a success.
  void driver_ended(JobId job);
  // Its process is gone. News of one that a node knows come from there, with how it ended.
  void driver_gone(JobId job);
  Result<JobId> job_submitted(const actors::JobSpec& spec);
  void port_found(JobId job, Result<std::uint16_t> port);
  // The node was not reached: the job waits for its place again.
  void port_not_asked(JobId job);
  Result<void> job_stopped(JobId job, bool force);
  // InvalidArgument while it has not ended.
  Result<void> job_deleted(JobId job);

  // ---- events: actors ----
  // What exists already, if that was asked for; the gang's own actors will not be then. InvalidArgument/NameTaken; Cancelled/CreatorEnded.
  Result<std::optional<actors::FoundActor>> gang_requested(const actors::GangSpec& spec);
  // `restart`: as if its process had died, so that it is started again if it may be.
  Result<void> actor_killed(ActorId actor, bool restart = false);
  // A worker of functions that its keeper does not need any more: it ends, and what it made ends with the keeper instead.
  Result<void> worker_retired(ActorId worker);
  // Answered by TellHosted to each member once the gang is complete.
  Result<void> actor_hosted(const actors::HostActor& actor);
  void attributes_set(const actors::SetAttributes& attributes);

  // ---- events: placement groups ----
  // InvalidArgument/NameTaken.
  Result<void> group_requested(const actors::GroupSpec& spec);
  // The actors in it end.
  void group_removed(GroupId group);

  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  // ---- what is kept ----
  // What changed since it was last asked, to be kept before the actions that go with it are performed. What could not be kept is given
  // back, and comes again.
  bool changed() const;
  std::vector<Record> take_changes();
  void change_again(const std::vector<Record>& records);
  std::vector<Record> all_records() const;
  // Goes on where another head ended, before any event: nodes are away until they join again, and what they do not tell of then is over.
  // DataLoss.
  Result<void> restore(const std::vector<Record>& records);

  // ---- queries ----
  // By id, a page of rows after `request.after`.
  actors::ListReply list(const actors::ListRequest& request) const;
  actors::ClusterStatus status() const;
  actors::ClusterStatus resources(JobId asking) const;  // the part of it that costs little
  // Whether somebody waits for what this job's workers of remote functions hold, and has more right to it: something else of the job, or
  // a job that holds less.
  bool wanted_back(JobId job) const;
  // How much there is of what, and in which states.
  std::vector<actors::MetricFamily> metrics() const;
  const actors::ActorRow* actor(ActorId id) const;
  // Of the actor that this worker is to make, with what it is made from. NotFound.
  Result<actors::FoundActor> birth(WorkerId worker) const;
  // Whether the environment of something that lives, or waits, has this text in it.
  bool mentions(const std::string& text) const;
  // The living actor of this name. NotFound.
  Result<actors::FoundActor> find(const actors::FindActor& request) const;
  const actors::JobRow* job(JobId id) const;
  const actors::GroupRow* group(GroupId id) const;
  // The living one of this name. NotFound.
  Result<actors::GroupRow> find_group(const actors::FindActor& request) const;
  const actors::NodeRow* node(NodeId id) const;
  std::vector<NodeId> alive_nodes() const;
  // That have workers of the job, or had them lately.
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
  // Where a worker's resources come from.
  struct Site {
    NodeId node;
    std::int32_t bundle = -1;  // of the gang's placement group
  };
  // Waits for room. When there is some, jobs take turns: the next is the first of those that wait of the job that holds the smallest share
  // of the nodes (turns.h). One that does not fit is passed over; a gang, a group or a submitted job is placed as a whole or not at all.
  //
  // So that what is large is not passed over for ever, room is kept for whoever has waited for `patience` (of several the first that came,
  // and only if the nodes could hold it when nothing else ran): for `first_window` nothing else is placed that asks for the same kinds of
  // resources. If what ran has not ended by then, others have their turn for twice as long (`patience` at least), and each further window
  // is twice as long as the one before, up to `longest_window`. So it is placed if whatever runs ends within that time, and others never
  // wait for it for longer.
  struct Pending {
    GangId gang;  // or
    JobId job;    // or
    GroupId group;
    runtime::TimePoint since;
    bool explained = false, warned = false;
    runtime::TimePoint not_before{};
    GangId like{};               // of gangs: for whom there is room exactly when there is for this one; none: it waits in a group
    JobId gang_job{};            // of gangs: whose it is
    std::uint64_t tried_at = 0;  // Rooms::growth(): without more room it need not be tried again
    int windows = 0;             // in which room was kept for it
    runtime::TimePoint rests_until{};
  };
  // Room is kept for one of them, that may have ended since.
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
  std::string off_duty() const;
  std::string off_duty(const actors::Where& where) const;
  void drain_nodes();
  void move_actors(NodeId node);
  bool may_restart(const actors::ActorRow& row) const;
  void restore_ended();
  void restore_pending();
  Result<void> restore_holdings();
  // Its node has told of all it has.
  void node_told(NodeId node);
  actors::StartWorker start_of(const Gang& gang, std::size_t member) const;
  actors::StartWorker start_of(const Job& job, std::size_t rank) const;
  void start_again(const Worker& worker);
  void give_back_places(Job& job);  // of one that has not started
  // What nodes have free, or could ever have.
  const Rooms& rooms() const;
  // Those of them that are allowed: the room itself where all are.
  class Allowed {
   public:
    explicit Allowed(const Room* all) : all_(all) {}
    explicit Allowed(Room some) : some_(std::move(some)) {}
    const Room& operator*() const { return all_ != nullptr ? *all_ : some_; }
    const Room* operator->() const { return &**this; }

   private:
    const Room* all_ = nullptr;
    Room some_;
  };
  Allowed only(const Room& room, const actors::Where& where, const std::vector<actors::Resources>& wants) const;
  Allowed only(const Room& room, const std::vector<actors::LabelMatch>& labels) const;
  // Bundles that still have no node, as wants, and where they may go. One that needs a node with labels wants one of something that just
  // these nodes have.
  struct Asked {
    std::vector<actors::Resources> wants;
    Allowed allowed;
  };
  Asked asked(const Group& group, const Room& room) const;
  Load load() const;
  // Why no node or bundle, as they are, could ever hold it; for what waits for none.
  Result<void> check_where(const Gang& gang) const;
  std::optional<std::vector<Site>> place_gang(const Gang& gang) const;
  // Where the process is that asked for it; none if nobody knows.
  NodeId home_of(const Gang& gang) const;
  std::optional<std::vector<Site>> place_in_group(const Gang& gang, const Group& group) const;
  std::vector<actors::Resources> missing_bundles(const Group& group) const;
  bool place_group(GroupId id);
  void remove_group(Group& group, const Error& cause);
  void lose_bundles(NodeId node);
  // In the queue, or about to be.
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
  // What is free is kept for another.
  bool held_up(const Pending& pending) const;
  bool fits(const Pending& p, const Room& room) const;
  bool could_ever_fit(const Pending& pending) const;
  void look_at_windows();
  runtime::Duration window_length(const Pending& pending) const;
  void start_gang(Gang& gang, const std::vector<Site>& sites);
  void start_job(Job& job);
  WorkerId start_worker(const Site& site, GroupId group, actors::StartWorker message, const actors::Resources& held);
  // What it holds comes from there: a bundle, or its node.
  actors::Resources& source(const Worker& worker);
  void release(Worker& worker);
  void end_unwanted(const Worker& worker);
  void worker_exited(Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause);
  void stop_processes(const Job& job, int signal);
  void job_process_exited(Job& job, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause);
  JobId open_detached_job(const actors::GangSpec& spec);
  // With whose end it ends, or none. Cancelled/CreatorEnded.
  Result<WorkerId> creator_of(const actors::GangSpec& spec) const;
  void forget_gang(GangId gang);
  // What a process made: ends with it, or is another's from now on.
  void end_made_by(const Worker& worker, const Error& why);
  void hand_on(WorkerId from, WorkerId to);
  // Whether it is started again after an end of its process that nobody asked for.
  bool restart_actor(actors::ActorRow& row, const Worker& worker, std::int32_t shell_code, const Error& cause);
  // With what waits for it, and its process.
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

  // What is kept. Everything below follows from it, or is asked for again.
  Table<NodeId, Node> nodes_;
  Table<WorkerId, Worker> workers_;
  Table<JobId, Job> jobs_;
  Table<ActorId, actors::ActorRow> actors_;
  Table<GangId, Gang> gangs_;
  Table<GroupId, Group> groups_;

  mutable Rooms rooms_;  // of nodes_
  std::uint64_t next_order_ = 1;
  std::map<std::pair<std::string, std::string>, ActorId> names_;        // (namespace, name): who lives
  std::map<std::pair<std::string, std::string>, GroupId> group_names_;  // (namespace, name)
  std::map<WorkerId, std::set<GangId>> made_by_;                        // living gangs by creator
  std::map<std::pair<JobId, std::string>, HostedGang> hosted_;
  std::map<WorkerId, std::vector<ActorId>> hosted_in_;
  std::map<JobId, runtime::TimePoint> unattached_;  // of a head before this one: until when their drivers may take to join a node
  std::deque<Pending> pending_;
  int looks_ = 0;  // at all nodes since the last tick, to say why something waits
  Shares shares_;
  std::optional<Window> window_;
  std::deque<WorkerId> ended_workers_;
  std::deque<ActorId> ended_actors_;
  std::deque<JobId> ended_jobs_;
  std::deque<GroupId> removed_groups_;
  std::vector<Action> actions_;
};

}  // namespace shoal::scheduler
