// The head's handlers of requests and notices, by subject.
#include <algorithm>
#include <iterator>
#include <utility>

#include "scheduler/head/head.h"

namespace shoal::scheduler {

using actors::Empty;
using actors::Method;

void Head::answer_cluster() {
  methods_.on<Method::kRegisterNode>([this](Client& client, const actors::RegisterNode& node) { return register_node(client, node); });
  // A heartbeat that is a request: by the answer, a node of a cluster with several heads knows that this head lives.
  methods_.on<Method::kHeartbeat>([this](Client& client, Empty) { state_.step(NodeBeat{client.node}); });
  methods_.on<Method::kRegisterDriver>(
      [this](Client& client, const actors::RegisterDriver& driver) { return register_driver(client, driver); });
  methods_.on<Method::kSignCertificate>([this](Client&, const actors::SignCertificate& request) -> Result<actors::SignedCertificate> {
    if (!options_.sign) {
      return fail(invalid_argument("this cluster lives on one host and has no certificates")
                      .with_hint("start it with: shoal start --head --host ADDRESS"));
    }
    SHOAL_TRY(auto certificate, options_.sign(request));
    log_->info("host={} got a certificate", request.host);
    return certificate;
  });
  methods_.on<Method::kPutPackage>(
      [this](Client& client, const actors::PackagePart& part) { return packages_.put(client.number(), part); });
  methods_.on<Method::kGetPackage>([this](Client&, const actors::PackagePart& part) { return packages_.get(part); });
  methods_.on<Method::kInspect>([this](Client&, const actors::Inspect& request) { return reported(request); });
  methods_.on<Method::kWatchNode>([this](Client& client, const actors::NodeRef& ref) -> Result<actors::ListReply> {
    const auto* row = state_.node(ref.node);
    if (row == nullptr) return fail(not_found("no node " + to_string(ref.node)));
    if (row->state != actors::NodeState::kDead) watchers_.watch(ref.node, client.number());
    actors::ListReply reply;
    reply.nodes.push_back(*row);
    return reply;
  });
  methods_.on<Method::kSetNodeScheduling>([this](Client&, const actors::SetNodeScheduling& wish) -> Result<void> {
    SHOAL_OK(state_.step(SchedulingSet{wish}));
    log_->info("node={} {}", to_string(wish.node), actors::state_text(*state_.node(wish.node)));
    return {};
  });
  methods_.on<Method::kList>([this](Client&, const actors::ListRequest& request) { return state_.list(request); });
  methods_.on<Method::kStatus>([this](Client&, const std::optional<actors::JobRef>& requester) {
    if (requester) return state_.resources(requester->job);  // jobs ask for their resources often
    auto status = state_.status();
    status.session = options_.session;
    status.head_pid = options_.pid;
    status.store = options_.store;
    status.heads = heads_;
    return status;
  });
  methods_.on<Method::kShutdown>([this](Client&, Empty) {
    log_->info("shutdown requested");
    if (!ending_) ending_.emplace();
    for (const NodeId node : state_.alive_nodes()) {
      if (links_.contains(node) && ending_->notified.insert(node).second) links_.notify(node, Method::kEndNode);
    }
  });
}

void Head::answer_jobs() {
  methods_.on<Method::kSubmitJob>([this](Client& client, const actors::JobSpec& spec) -> Result<actors::JobRef> {
    SHOAL_TRY(const JobId job, state_.step(JobSubmitted{spec}));
    watchers_.watch(job, client.number());
    commits_.set_created({.jobs = {job}});
    log_->info("job={} submitted name={} workers={}", to_string(job), spec.name, spec.num_workers);
    return actors::JobRef{job};
  });
  methods_.on<Method::kWatchJob>([this](Client& client, const actors::JobRef& ref) -> Result<actors::JobRow> {
    const auto* row = state_.job(ref.job);
    if (row == nullptr) return fail(not_found("no job " + to_string(ref.job)));
    if (!actors::ended(row->state)) watchers_.watch(ref.job, client.number());  // an ended job changes no more
    for (const NodeId node : state_.nodes_of(ref.job)) {
      if (const auto* at = state_.node(node)) watchers_.is_on(*at, client.number());
    }
    return *row;
  });
  methods_.on<Method::kStopJob>([this](Client&, const actors::StopJob& stop) { return state_.step(JobStopped{stop.job, stop.force}); });
  methods_.on<Method::kDeleteJob>([this](Client&, const actors::JobRef& ref) { return state_.step(JobDeleted{ref.job}); });
  methods_.on<Method::kCreateGroup>([this](Client& client, const actors::GroupSpec& spec) -> Result<void> {
    const bool again = state_.group(spec.id) != nullptr;
    SHOAL_OK(state_.step(GroupRequested{spec}));
    watchers_.watch(spec.id, client.number());
    if (again) commits_.perform(NotifyGroup{*state_.group(spec.id)});
    commits_.set_created(again && !commits_.unstored(spec.id) ? Created() : Created{.groups = {spec.id}});
    return {};
  });
  methods_.on<Method::kWatchGroup>([this](Client& client, const actors::GroupRef& ref) -> Result<actors::GroupRow> {
    const auto* row = state_.group(ref.group);
    if (row == nullptr) return fail(not_found("no placement group " + to_string(ref.group)));
    if (row->state != actors::GroupState::kRemoved) watchers_.watch(ref.group, client.number());
    return *row;
  });
  methods_.on<Method::kFindGroup>([this](Client& client, const actors::FindActor& request) -> Result<actors::GroupRow> {
    SHOAL_TRY(const auto row, state_.find_group(request));
    watchers_.watch(row.id, client.number());
    return row;
  });
}

void Head::answer_actors() {
  methods_.on<Method::kCreateGang>([this](Client& client, const actors::GangSpec& spec) -> Result<std::optional<actors::FoundActor>> {
    const bool again = !spec.actors.empty() && state_.actor(spec.actors.front().id) != nullptr;
    SHOAL_TRY(const auto exists, state_.step(GangRequested{spec}));
    if (exists) {
      watchers_.watch(exists->row.id, client.number());
      commits_.set_created(commits_.unstored(exists->row.id) ? Created{.actors = {exists->row.id}} : Created());
      return exists;
    }
    for (const auto& a : spec.actors) {
      watchers_.watch(a.id, client.number());
      // For a repeated request: updates so far went to an earlier connection, so the row is sent again.
      if (const auto* row = again ? state_.actor(a.id) : nullptr) commits_.perform(NotifyActor{*row});
    }
    Created created;
    if (!again || commits_.unstored(spec.actors.front().id)) {
      for (const auto& a : spec.actors) created.actors.push_back(a.id);
    }
    commits_.set_created(std::move(created));
    log_->info("gang={} job={} actors={} class={}", to_string(spec.id), to_string(spec.job), spec.actors.size(), spec.actors[0].class_name);
    return std::nullopt;
  });
  methods_.on<Method::kKillActor>([this](Client&, const actors::KillActor& kill) {
    return kill.hand_on ? state_.step(WorkerRetired{kill.actor}) : state_.step(ActorKilled{kill.actor, kill.restart});
  });
  methods_.on<Method::kWatchActor>([this](Client& client, const actors::ActorRef& ref) -> Result<actors::ActorRow> {
    const auto* row = state_.actor(ref.actor);
    if (row == nullptr) return fail(not_found("no actor " + to_string(ref.actor)));
    if (row->state != actors::ActorState::kDead) watchers_.watch(ref.actor, client.number());
    return *row;
  });
  methods_.on<Method::kFindActor>([this](Client& client, const actors::FindActor& request) -> Result<actors::FoundActor> {
    SHOAL_TRY(const auto found, state_.find(request));
    watchers_.watch(found.row.id, client.number());
    return found;
  });
  methods_.on<Method::kHostActor>([this](Client&, const actors::HostActor& hosted, runtime::Responder& responder) -> Result<void> {
    SHOAL_OK(state_.step(ActorHosted{hosted}));
    hosting_.insert_or_assign(hosted.actor, std::move(responder));
    auto decided = state_.take_actions();
    // A repeated request has its answer as the only action. It need not wait for the store if the whole gang is stored.
    const auto* const again = decided.size() == 1 ? std::get_if<AnswerHosted>(&decided.front()) : nullptr;
    const auto unstored = [&](ActorId id) { return commits_.unstored(id); };
    if (again != nullptr && again->result && std::ranges::none_of(again->result->members, unstored)) {
      answer_hosted(*again);
      return {};
    }
    commits_.await({.hosted = {hosted.actor}});
    for (auto& action : decided) commits_.perform(std::move(action));
    return {};
  });
  methods_.on<Method::kGetCreationSpec>(
      [this](Client&, const actors::GetCreationSpec& request) { return state_.creation_spec(request.worker); });
  methods_.on<Method::kWorkerLeaves>(
      [this](Client&, const actors::GetCreationSpec& request) { state_.step(WorkerLeaves{request.worker}); });
  // As a request, kWorkerBlocked comes from a worker that wants its lent CPUs back.
  methods_.on<Method::kWorkerBlocked>([this](Client&, const actors::WorkerBlocked& request) -> Result<void> {
    if (request.blocked) return fail(invalid_argument("a request cannot state that a worker waits: send a notice"));
    return state_.step(WorkerResumes{request.worker});
  });
}

void Head::take_notices() {
  methods_.on_notice<Method::kHeartbeat>([this](Client& client, Empty) { state_.step(NodeBeat{client.node}); });
  methods_.on_notice<Method::kWorkerUpdate>([this](Client& client, const actors::WorkerUpdate& m) {
    if (m.state == actors::WorkerState::kExited) {
      log_->info("worker={} exited code={} cause='{}'", to_string(m.worker), m.shell_code, m.cause ? m.cause->message() : "");
    }
    state_.step(WorkerUpdated{client.node, m});
  });
  methods_.on_notice<Method::kEndDriver>([this](Client&, const actors::JobRef& m) { state_.step(DriverEnded{m.job}); });
  methods_.on_notice<Method::kRemoveGroup>([this](Client&, const actors::GroupRef& m) { state_.step(GroupRemoved{m.group}); });
  methods_.on_notice<Method::kWorkerBlocked>(
      [this](Client&, const actors::WorkerBlocked& m) { state_.step(WorkerBlocked{m.worker, m.blocked}); });
  methods_.on_notice<Method::kSetAttributes>([this](Client&, const actors::SetAttributes& m) { state_.step(AttributesSet{m}); });
}

Result<actors::ReportedMetrics> Head::reported(const actors::Inspect& request) const {
  if (request.what != actors::Inspect::What::kMetrics) return fail(unimplemented("the head reports metrics only; nodes report the rest"));
  using actors::FamilyOf;
  using actors::MetricKind;
  actors::ReportedMetrics out{state_.metrics()};
  out.metrics.push_back(FamilyOf(MetricKind::kGauge, "shoal_heads", "Heads of the cluster: the one that leads, and those that stand by.")
                            .add(1, {{"role", "leader"}})
                            .add(static_cast<double>(std::max<std::size_t>(heads_.size(), 1) - 1), {{"role", "standby"}}));
  out.metrics.push_back(FamilyOf(MetricKind::kGauge, "shoal_head_uptime_seconds", "Since this head began to lead.")
                            .add(std::chrono::duration<double>(clock_.now() - began_).count()));
  if (options_.measure) {
    auto measured = options_.measure();
    std::move(measured.begin(), measured.end(), std::back_inserter(out.metrics));
  }
  return out;
}

Result<actors::RegisteredNode> Head::register_node(Client& client, const actors::RegisterNode& node) {
  if (client.node && client.node != node.id) return fail(invalid_argument("this connection belongs to node " + to_string(client.node)));
  SHOAL_OK(state_.step(NodeJoined{node}));
  // A node has one connection, so an older one is closed: its messages are outdated, or will be repeated. If the node still uses
  // the older one, it connects again.
  if (const auto old = links_.set(node.id, *client.peer)) forget(*old);
  client.node = node.id;
  if (ending_) {
    ending_->notified.insert(node.id);
    links_.notify(node.id, Method::kEndNode);
  }
  if (client.peer->identity().local) {
    node_watch_.watch(node.id, node.pid);
  } else {
    node_watch_.watch_if_near(node);
  }
  log_->info("node={} joined host={} resources='{}'", to_string(node.id), node.host, node.resources.to_string());
  return actors::RegisteredNode{options_.session, options_.heartbeat_ms, heads_};
}

bool Head::repeats(Method method, const runtime::Message& request) const {
  if (method == Method::kCreateGang) {
    const auto spec = actors::from_bytes<actors::GangSpec>(request.body);
    if (!spec || spec->actors.empty()) return false;
    if (spec->get_if_exists) {
      if (const auto found = state_.find({spec->name, spec->name_space})) return !commits_.unstored(found->row.id);
    }
    const ActorId first = spec->actors.front().id;
    return state_.actor(first) != nullptr && !commits_.unstored(first);
  }
  if (method == Method::kHostActor) {
    const auto hosted = actors::from_bytes<actors::HostActor>(request.body);
    // A request for an actor whose gang still gathers does not count: it would wait for the store, and end the gang if it were refused.
    const auto* const row = hosted ? state_.actor(hosted->actor) : nullptr;
    return row != nullptr && row->state != actors::ActorState::kPending && !commits_.unstored(hosted->actor);
  }
  if (method == Method::kCreateGroup) {
    const auto spec = actors::from_bytes<actors::GroupSpec>(request.body);
    return spec && state_.group(spec->id) != nullptr && !commits_.unstored(spec->id);
  }
  if (method == Method::kRegisterDriver) {
    const auto driver = actors::from_bytes<actors::RegisterDriver>(request.body);
    const auto* const job = driver ? state_.job(driver->job) : nullptr;
    return job != nullptr && !actors::ended(job->state);
  }
  return false;
}

Result<actors::RegisteredDriver> Head::register_driver(Client& client, const actors::RegisterDriver& driver) {
  const auto alive = state_.alive_nodes();
  if (alive.empty()) {
    return fail(unavailable("the cluster has no node").with_reason("NoNode").with_hint("start one with: shoal start --address HOST:PORT"));
  }
  const JobId job = state_.step(DriverJoined{driver});
  watchers_.watch(job, client.number());
  // The driver may die before it attaches to a node that would report its death, so the head watches its process.
  if (options_.watch_process && client.peer->identity().local && job != driver.job) {
    driver_watches_[job] = options_.watch_process(client.peer->identity().pid, [this, job] {
      const auto over = driver_watches_.extract(job);
      happened(DriverGone{job});
    });
  }
  commits_.set_created(job == driver.job ? Created() : Created{.jobs = {job}});
  log_->info("job={} driver pid={} name={}", to_string(job), driver.pid, driver.name);
  // Prefers a node of the driver's host if the driver runs on the head's host. A driver on another host finds its host's node by itself.
  const auto of_its_host = [&](NodeId id) {
    const auto* link = links_.find(id);
    return link != nullptr && link->identity().local == client.peer->identity().local;
  };
  const auto near = std::find_if(alive.begin(), alive.end(), of_its_host);
  const NodeId node = near != alive.end() ? *near : alive.front();
  return actors::RegisteredDriver{job, state_.node(node)->endpoint, options_.session};
}

}  // namespace shoal::scheduler
