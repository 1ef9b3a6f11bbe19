#include "scheduler/head/head.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);           // delay of a tick that is logged
constexpr std::chrono::milliseconds kMoment(1);    // delay of commits that no caller awaits
constexpr const char* kNotReached = "NotReached";  // reason of requests that did not reach their node
constexpr std::size_t kMostLooks = 16;             // concurrent checks of missing nodes

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

bool changes_state(Method method) {
  switch (method) {
    case Method::kRegisterDriver:
    case Method::kCreateGang:
    case Method::kKillActor:
    case Method::kCreateGroup:
    case Method::kHostActor:
    case Method::kSubmitJob:
    case Method::kStopJob:
    case Method::kDeleteJob:
    case Method::kSetNodeScheduling:
      return true;
    default:
      return false;
  }
}

}  // namespace

Head::Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options)
    : clock_(clock),
      random_(random),
      network_(network),
      store_(store),
      log_(std::move(log)),
      options_(std::move(options)),
      state_(options_.state, random),
      packages_(clock, options_.packages, [this](const std::string& name) { return state_.mentions(name); }) {}

Head::~Head() {
  *alive_ = false;   // calls that fail as connections close are no news of a node
  clients_.clear();  // before answers that wait for a commit: clients see a broken connection, and ask the next head
}

Result<void> Head::start() {
  SHOAL_OK(restore());
  for (const auto& endpoint : options_.listen) {
    SHOAL_TRY(auto listener, network_.listen(endpoint, [this](std::unique_ptr<runtime::Connection> connection) {
      const std::uint64_t number = next_client_++;
      clients_[number].peer = std::make_unique<Peer>(std::move(connection), clock_, *this, number);
    }));
    log_->info("listening endpoint={}", listener->endpoint().to_string());
    listeners_.push_back(std::move(listener));
  }
  tick();
  return {};
}

Result<void> Head::restore() {
  now();
  SHOAL_TRY(const auto records, store_.load());
  if (records.empty()) return {};
  SHOAL_OK(state_.restore(records));
  log_->info("restored rows={} nodes={}", records.size(), state_.alive_nodes().size());
  return {};
}

std::vector<runtime::Endpoint> Head::endpoints() const {
  std::vector<runtime::Endpoint> out;
  for (const auto& l : listeners_) out.push_back(l->endpoint());
  return out;
}

void Head::set_heads(std::vector<std::string> endpoints) {
  heads_ = std::move(endpoints);
  for (const auto& [node, peer] : nodes_) peer->notify(number(Method::kHeads), body(to_bytes(actors::Heads{heads_, false})));
}

bool Head::fenced() {
  if (!fenced_ && options_.leads && !options_.leads()) {
    fenced_ = true;
    log_->warn("this head no longer leads");
    options_.on_fenced();
  }
  return fenced_;
}

void Head::tick() {
  if (fenced()) return;
  now();
  state_.step(Tick{});
  settle();
  look_for_missing();
  if (unsaved_) flush();
  ticking_ = clock_.after(options_.tick, [this, due = clock_.now() + options_.tick] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("the event loop was blocked for {} ms", late.count());
    tick();
  });
}

void Head::on_request(Peer& peer, runtime::Request request, runtime::Responder responder) {
  if (fenced()) return responder.fail(unavailable("this head no longer leads").with_reason("Disconnected"));
  now();
  const auto method = static_cast<Method>(request.method);
  bool later = false;
  auto result = answer(client(peer), method, request.message.body, responder, later);
  settle();  // watchers are notified before this answer
  // A read-only request is answered at once, unless it may have seen changes that are being stored.
  const bool waits = method != Method::kHeartbeat && (unsaved_ ? changes_state(method) && result : busy_ || flush_soon_);
  if (!later && waits) {
    outbox_.push_back(Answer{std::move(responder), std::move(result)});
  } else if (!later) {
    responder.answer(std::move(result));
  }
  if (method == Method::kShutdown && options_.on_shutdown) options_.on_shutdown();
}

Result<Message> Head::reported(const Bytes& bytes) const {
  SHOAL_TRY(const auto asked, from_bytes<actors::Inspect>(bytes));
  if (asked.what != actors::Inspect::What::kMetrics) return fail(unimplemented("the head reports metrics only; nodes report the rest"));
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
  return Message{{}, to_bytes(out), {}};
}

Result<Message> Head::answer(Client& client, Method method, const Bytes& bytes, runtime::Responder& responder, bool& later) {
  const std::uint64_t watcher = client.peer->number();
  if (changes_state(method)) SHOAL_OK(writable());
  if (method == actors::kSignCertificate) return sign_certificate(bytes);
  if (method == actors::kPutPackage || method == actors::kGetPackage) {
    SHOAL_TRY(const auto part, from_bytes<actors::PackagePart>(bytes));
    if (method == actors::kGetPackage) {
      SHOAL_TRY(const auto there, packages_.get(part));
      return body(to_bytes(there));
    }
    SHOAL_TRY(const auto has, packages_.put(watcher, part));
    return body(to_bytes(has));
  }
  if (method == actors::kInspect) return reported(bytes);
  switch (method) {
    case Method::kRegisterNode:
      return register_node(client, bytes);
    case Method::kHeartbeat:  // a node's check that this head lives
      state_.step(NodeBeat{client.node});
      return Message();
    case Method::kRegisterDriver:
      return register_driver(client, bytes);
    case Method::kCreateGang: {
      SHOAL_TRY(const auto spec, from_bytes<actors::GangSpec>(bytes));
      const bool again = !spec.actors.empty() && state_.actor(spec.actors.front().id) != nullptr;
      SHOAL_TRY(const auto exists, state_.step(GangRequested{spec}));
      if (exists) {
        actor_watchers_[exists->row.id].insert(watcher);
        return body(to_bytes(*exists));
      }
      for (const auto& a : spec.actors) {
        actor_watchers_[a.id].insert(watcher);
        // Updates so far went to an earlier connection.
        if (const auto* row = again ? state_.actor(a.id) : nullptr) outbox_.emplace_back(Action(NotifyActor{*row}));
      }
      log_->info("gang={} job={} actors={} class={}", to_string(spec.id), to_string(spec.job), spec.actors.size(),
                 spec.actors[0].class_name);
      return Message();
    }
    case Method::kKillActor: {
      SHOAL_TRY(const auto kill, from_bytes<actors::KillActor>(bytes));
      SHOAL_OK(kill.hand_on ? state_.step(WorkerRetired{kill.actor}) : state_.step(ActorKilled{kill.actor, kill.restart}));
      return Message();
    }
    case Method::kWatchActor: {
      SHOAL_TRY(const auto ref, from_bytes<actors::ActorRef>(bytes));
      const auto* row = state_.actor(ref.actor);
      if (row == nullptr) return fail(not_found("no actor " + to_string(ref.actor)));
      if (row->state != actors::ActorState::kDead) actor_watchers_[ref.actor].insert(watcher);
      return body(to_bytes(*row));
    }
    case Method::kGetCreationSpec: {
      SHOAL_TRY(const auto request, from_bytes<actors::GetCreationSpec>(bytes));
      SHOAL_TRY(const auto creation_spec, state_.creation_spec(request.worker));
      return body(to_bytes(creation_spec));
    }
    case Method::kWorkerLeaves: {
      SHOAL_TRY(const auto request, from_bytes<actors::GetCreationSpec>(bytes));
      state_.step(WorkerLeaves{request.worker});
      return Message();
    }
    case Method::kWorkerBlocked: {  // a request to resume
      SHOAL_TRY(const auto request, from_bytes<actors::WorkerBlocked>(bytes));
      if (request.blocked) return fail(invalid_argument("a request cannot state that a worker waits: send a notice"));
      SHOAL_OK(state_.step(WorkerResumes{request.worker}));
      return Message();
    }
    case Method::kFindActor: {
      SHOAL_TRY(const auto request, from_bytes<actors::FindActor>(bytes));
      SHOAL_TRY(const auto found, state_.find(request));
      actor_watchers_[found.row.id].insert(watcher);
      return body(to_bytes(found));
    }
    case Method::kCreateGroup: {
      SHOAL_TRY(const auto spec, from_bytes<actors::GroupSpec>(bytes));
      const bool again = state_.group(spec.id) != nullptr;
      SHOAL_OK(state_.step(GroupRequested{spec}));
      group_watchers_[spec.id].insert(watcher);
      if (again) outbox_.emplace_back(Action(NotifyGroup{*state_.group(spec.id)}));
      return Message();
    }
    case Method::kWatchGroup: {
      SHOAL_TRY(const auto ref, from_bytes<actors::GroupRef>(bytes));
      const auto* row = state_.group(ref.group);
      if (row == nullptr) return fail(not_found("no placement group " + to_string(ref.group)));
      if (row->state != actors::GroupState::kRemoved) group_watchers_[ref.group].insert(watcher);
      return body(to_bytes(*row));
    }
    case Method::kWatchNode: {
      SHOAL_TRY(const auto ref, from_bytes<actors::NodeRef>(bytes));
      const auto* row = state_.node(ref.node);
      if (row == nullptr) return fail(not_found("no node " + to_string(ref.node)));
      if (row->state != actors::NodeState::kDead) node_watchers_[ref.node].insert(watcher);
      actors::ListReply reply;
      reply.nodes.push_back(*row);
      return body(to_bytes(reply));
    }
    case Method::kFindGroup: {
      SHOAL_TRY(const auto request, from_bytes<actors::FindActor>(bytes));
      SHOAL_TRY(const auto row, state_.find_group(request));
      group_watchers_[row.id].insert(watcher);
      return body(to_bytes(row));
    }
    case Method::kHostActor: {
      SHOAL_TRY(const auto hosted, from_bytes<actors::HostActor>(bytes));
      SHOAL_OK(state_.step(ActorHosted{hosted}));
      later = true;
      hosting_.insert_or_assign(hosted.actor, std::move(responder));
      return Message();
    }
    case Method::kSubmitJob: {
      SHOAL_TRY(const auto spec, from_bytes<actors::JobSpec>(bytes));
      SHOAL_TRY(const JobId job, state_.step(JobSubmitted{spec}));
      job_watchers_[job].insert(watcher);
      log_->info("job={} submitted name={} workers={}", to_string(job), spec.name, spec.num_workers);
      return body(to_bytes(actors::JobRef{job}));
    }
    case Method::kWatchJob: {
      SHOAL_TRY(const auto ref, from_bytes<actors::JobRef>(bytes));
      const auto* row = state_.job(ref.job);
      if (row == nullptr) return fail(not_found("no job " + to_string(ref.job)));
      if (!actors::ended(row->state)) job_watchers_[ref.job].insert(watcher);  // an ended job has no more updates
      for (const NodeId node : state_.nodes_of(ref.job)) job_is_on(node, {watcher});
      return body(to_bytes(*row));
    }
    case Method::kStopJob: {
      SHOAL_TRY(const auto stop, from_bytes<actors::StopJob>(bytes));
      SHOAL_OK(state_.step(JobStopped{stop.job, stop.force}));
      return Message();
    }
    case Method::kDeleteJob: {
      SHOAL_TRY(const auto ref, from_bytes<actors::JobRef>(bytes));
      SHOAL_OK(state_.step(JobDeleted{ref.job}));
      return Message();
    }
    case Method::kSetNodeScheduling: {
      SHOAL_TRY(const auto wish, from_bytes<actors::SetNodeScheduling>(bytes));
      SHOAL_OK(state_.step(SchedulingSet{wish}));
      log_->info("node={} {}", to_string(wish.node), actors::state_text(*state_.node(wish.node)));
      return Message();
    }
    case Method::kList: {
      SHOAL_TRY(const auto request, from_bytes<actors::ListRequest>(bytes));
      return body(to_bytes(state_.list(request)));
    }
    case Method::kStatus: {
      if (bytes.size() > 0) {  // a frequent request of jobs
        SHOAL_TRY(const auto asking, from_bytes<actors::JobRef>(bytes));
        return body(to_bytes(state_.resources(asking.job)));
      }
      auto status = state_.status();
      status.session = options_.session;
      status.head_pid = options_.pid;
      status.store = options_.store;
      status.heads = heads_;
      return body(to_bytes(status));
    }
    case Method::kShutdown: {
      log_->info("shutdown requested");
      for (const auto& [node, p] : nodes_) p->notify(number(Method::kEndNode), {});
      return Message();
    }
    default:
      return fail(unimplemented("the head does not implement method " + std::to_string(number(method))));
  }
}

Result<Message> Head::sign_certificate(const Bytes& bytes) {
  SHOAL_TRY(const auto asked, from_bytes<actors::SignCertificate>(bytes));
  if (!options_.sign) {
    return fail(invalid_argument("this cluster lives on one host and has no certificates")
                    .with_hint("start it with: shoal start --head --host ADDRESS"));
  }
  SHOAL_TRY(const std::string certificate, options_.sign(asked));
  log_->info("host={} got a certificate", asked.host);
  return body(to_bytes(actors::SignedCertificate{certificate}));
}

Result<Message> Head::register_node(Client& client, const Bytes& bytes) {
  if (client.peer->identity().role != runtime::Role::kNode) return fail(invalid_argument("only a node can register as a node"));
  SHOAL_TRY(const auto node, from_bytes<actors::RegisterNode>(bytes));
  if (client.node && client.node != node.id) return fail(invalid_argument("this connection belongs to node " + to_string(client.node)));
  SHOAL_OK(state_.step(NodeJoined{node}));
  // A node has one connection. An older one is closed: its messages are outdated or will be repeated. If the node uses that one, it
  // reconnects.
  if (const auto old = nodes_.find(node.id); old != nodes_.end() && old->second != client.peer.get()) {
    forget(nodes_.extract(old).mapped()->number());
  }
  client.node = node.id;
  nodes_[node.id] = client.peer.get();
  if (client.peer->identity().local) {
    watch_node(node.id, node.pid);
  } else {
    watch_if_near(node);
  }
  log_->info("node={} joined host={} resources='{}'", to_string(node.id), node.host, node.resources.to_string());
  return body(to_bytes(actors::RegisteredNode{options_.session, options_.heartbeat_ms, heads_}));
}

void Head::watch_node(NodeId id, pid_t pid) {
  if (!options_.watch_process) return;
  node_watches_[id] = options_.watch_process(pid, [this, id] {
    const auto over = node_watches_.extract(id);
    now();
    state_.step(NodeLost{id, unavailable("its node's process ended").with_reason("NodeLost")});
    settle();
  });
}

// The pid that the node sent may belong to another pid namespace; the kernel's pid of the listener on a unix socket does not.
void Head::watch_if_near(const actors::RegisterNode& node) {
  const auto endpoint = runtime::parse_endpoint(node.endpoint);
  if (!options_.watch_process || !endpoint) return;
  const bool near =
      endpoint->is_unix() || (endpoint->is_both() && std::any_of(options_.listen.begin(), options_.listen.end(),
                                                                 [&](const auto& own) { return own.host == endpoint->host; }));
  if (!near || node_watches_.contains(node.id)) return;
  network_.connect(*endpoint, runtime::Role::kClient, options_.look_timeout,
                   [this, alive = alive_, id = node.id](Result<std::unique_ptr<runtime::Connection>> r) {
                     if (!*alive || !r || !(*r)->identity().local || (*r)->identity().pid <= 0) return;
                     const auto* row = state_.node(id);
                     if (row != nullptr && row->state != actors::NodeState::kDead) watch_node(id, (*r)->identity().pid);
                   });
}

// A node listens as long as its process lives, so a refused connection proves its death. A host that does not answer, or a starved process,
// proves nothing; such a node has until its heartbeats are missed.
void Head::look_for_missing() {
  for (auto it = missing_.begin(); it != missing_.end() && looked_for_.size() < kMostLooks;) {
    const NodeId id = *it;
    const auto* row = state_.node(id);
    if (row == nullptr || row->state == actors::NodeState::kDead || nodes_.contains(id)) {
      it = missing_.erase(it);
      continue;
    }
    ++it;
    const auto endpoint = runtime::parse_endpoint(row->endpoint);
    if (!endpoint || endpoint->is_unix() || !looked_for_.insert(id).second) continue;  // a unix path means nothing on another host
    network_.connect(*endpoint, runtime::Role::kClient, options_.look_timeout,
                     [this, alive = alive_, id, at = row->endpoint](Result<std::unique_ptr<runtime::Connection>> r) {
                       if (!*alive) return;
                       looked_for_.erase(id);
                       const auto* known = state_.node(id);
                       if (r || r.error().reason() != "Refused" || known == nullptr || known->endpoint != at || nodes_.contains(id)) return;
                       if (fenced()) return;
                       now();
                       state_.step(NodeLost{id, unavailable("its node's process ended").with_reason("NodeLost")});
                       settle();
                     });
  }
}

Result<Message> Head::register_driver(Client& client, const Bytes& bytes) {
  SHOAL_TRY(const auto driver, from_bytes<actors::RegisterDriver>(bytes));
  const auto alive = state_.alive_nodes();
  if (alive.empty()) {
    return fail(unavailable("the cluster has no node").with_reason("NoNode").with_hint("start one with: shoal start --address HOST:PORT"));
  }
  const JobId job = state_.step(DriverJoined{driver});
  job_watchers_[job].insert(client.peer->number());
  // It may die before it attaches to a node that would report its death.
  if (options_.watch_process && client.peer->identity().local && job != driver.job) {
    driver_watches_[job] = options_.watch_process(client.peer->identity().pid, [this, job] {
      const auto over = driver_watches_.extract(job);
      now();
      state_.step(DriverGone{job});
      settle();
    });
  }
  log_->info("job={} driver pid={} name={}", to_string(job), driver.pid, driver.name);
  // Prefers a node of the driver's host, as far as the head can see. A driver elsewhere finds its host's node by itself.
  const auto of_its_host = [&](NodeId id) {
    const auto node = nodes_.find(id);
    return node != nodes_.end() && node->second->identity().local == client.peer->identity().local;
  };
  const auto near = std::find_if(alive.begin(), alive.end(), of_its_host);
  const NodeId node = near != alive.end() ? *near : alive.front();
  return body(to_bytes(actors::RegisteredDriver{job, state_.node(node)->endpoint, options_.session}));
}

void Head::on_notice(Peer& peer, runtime::Request notice) {
  if (fenced()) return;
  now();
  const NodeId node = client(peer).node;
  const auto ignore = [&](const Error& e) { log_->warn("notice={} refused: {}", notice.method, e.message()); };
  switch (static_cast<Method>(notice.method)) {
    case Method::kHeartbeat:
      state_.step(NodeBeat{node});
      break;
    case Method::kWorkerUpdate:
      if (const auto m = from_bytes<actors::WorkerUpdate>(notice.message.body); !m) {
        ignore(m.error());
      } else {
        if (m->state == actors::WorkerState::kExited) {
          log_->info("worker={} exited code={} cause='{}'", to_string(m->worker), m->shell_code, m->cause ? m->cause->message() : "");
        }
        state_.step(WorkerUpdated{node, *m});
      }
      break;
    case Method::kEndDriver:
      if (const auto m = from_bytes<actors::JobRef>(notice.message.body); !m) {
        ignore(m.error());
      } else {
        state_.step(DriverEnded{m->job});
      }
      break;
    case Method::kRemoveGroup:
      if (const auto m = from_bytes<actors::GroupRef>(notice.message.body); !m) {
        ignore(m.error());
      } else {
        state_.step(GroupRemoved{m->group});
      }
      return settle(Awaited::kNo);
    case Method::kWorkerBlocked:
      if (const auto m = from_bytes<actors::WorkerBlocked>(notice.message.body); !m) {
        ignore(m.error());
      } else {
        state_.step(WorkerBlocked{m->worker, m->blocked});
      }
      break;
    case Method::kSetAttributes:
      if (const auto m = from_bytes<actors::SetAttributes>(notice.message.body); !m) {
        ignore(m.error());
      } else {
        state_.step(AttributesSet{*m});
      }
      break;
    default:
      ignore(unimplemented("the head does not implement this notice"));
  }
  settle();
}

void Head::on_closed(Peer& peer, const Error& why) {
  auto owned = std::move(client(peer).peer);  // destroyed on return
  const NodeId node = client(peer).node;
  if (const auto it = nodes_.find(node); it != nodes_.end() && it->second == &peer) {
    nodes_.erase(it);
    state_.step(NodeAway{node});
    missing_.insert(node);
    log_->warn("node={} disconnected: {}", to_string(node),
               why.message());  // heartbeats, pid or host decide whether it is gone
  }
  packages_.closed(peer.number());
  forget(peer.number());
  look_for_missing();
}

// Removes a client and closes its connection if that is open.
void Head::forget(std::uint64_t client) {
  for (auto& [actor, watchers] : actor_watchers_) watchers.erase(client);
  for (auto& [job, watchers] : job_watchers_) watchers.erase(client);
  for (auto& [group, watchers] : group_watchers_) watchers.erase(client);
  for (auto& [node, watchers] : node_watchers_) watchers.erase(client);
  const auto owned = clients_.extract(client);  // its calls fail last, once nothing here refers to it
}

void Head::to_node(NodeId node, Method method, Bytes bytes, std::function<void(Result<Message>)> callback) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) {
    if (callback) callback(fail(unavailable("node " + to_string(node) + " is not connected").with_reason(kNotReached)));
    return;
  }
  if (!callback) {
    callback = [this, node, method](Result<Message> r) {
      if (!r) log_->warn("node={} method={} failed: {}", to_string(node), number(method), r.error().message());
    };
  }
  it->second->call(number(method), body(std::move(bytes)), method == Method::kStartWorker ? options_.start_timeout : options_.call_timeout,
                   [this, alive = alive_, node, number = it->second->number(), callback = std::move(callback)](Result<Message> r) {
                     if (!*alive) return;
                     const auto now = nodes_.find(node);
                     const bool lost = now == nodes_.end() || now->second->number() != number || !now->second->connected();
                     if (!r && lost) return callback(fail(Error(r.error()).with_reason(kNotReached)));
                     callback(std::move(r));
                   });
}

void Head::to_watchers(const std::set<std::uint64_t>& watchers, Method method, const Bytes& bytes) {
  // Flushed later: an answer to the same client may follow at once and share the write.
  for (const std::uint64_t w : watchers) clients_.at(w).peer->notify(number(method), body(bytes.clone()), runtime::Flush::kLater);
}

void Head::settle(Awaited awaited) {
  for (auto& action : state_.take_actions()) outbox_.emplace_back(std::move(action));
  const bool in_a_moment = awaited == Awaited::kNo;
  if (busy_ || unsaved_ || (outbox_.empty() && !state_.changed())) return;
  if (flush_soon_ && (in_a_moment || !flush_in_a_moment_)) return;
  flush_soon_ = true;  // deferred, so that other events share the commit
  flush_in_a_moment_ = in_a_moment;
  flushing_ = clock_.after(in_a_moment ? kMoment : runtime::Duration::zero(), [this] { flush(); });
}

void Head::flush() {
  flush_soon_ = flush_in_a_moment_ = false;
  if (busy_ || fenced()) return;
  auto records = state_.take_changes();
  if (records.empty() && outbox_.empty()) return;
  busy_ = true;
  for (auto& effect : std::exchange(outbox_, {})) committing_.push_back(std::move(effect));
  if (records.empty() && !unsaved_) return committed({}, {});
  auto kept = std::make_shared<std::vector<Record>>(std::move(records));
  store_.commit(*kept, [this, alive = alive_, kept](Result<void> r) {
    if (*alive) committed(std::move(*kept), std::move(r));
  });
}

void Head::committed(std::vector<Record> records, Result<void> result) {
  if (!result && result.error().reason() == "Fenced" && !std::exchange(fenced_, true)) {
    log_->warn("{}", result.error().message());
    if (options_.on_fenced) options_.on_fenced();
  }
  if (fenced()) return;  // the effects of this commit are dropped
  if (!result) {
    state_.change_again(records);
    busy_ = false;  // retried by each tick
    if (!unsaved_) {
      unsaved_since_ = clock_.now();
      log_->warn("state cannot be stored: {}", result.error().message());
    }
    unsaved_ = result.error();
    return;
  }
  if (std::exchange(unsaved_, std::nullopt)) log_->warn("state is stored again");
  for (auto& effect : std::exchange(committing_, {})) {
    if (auto* action = std::get_if<Action>(&effect)) {
      perform(std::move(*action));
    } else {
      auto& answer = std::get<Answer>(effect);
      answer.responder.answer(std::move(answer.result));
    }
  }
  busy_ = false;
  settle();  // effects may cause events
}

void Head::job_is_on(NodeId node, const std::set<std::uint64_t>& watchers) {
  const auto* row = state_.node(node);
  if (row == nullptr || watchers.empty()) return;
  actors::ListReply reply;
  reply.nodes.push_back(*row);
  to_watchers(watchers, Method::kJobOnNode, to_bytes(reply));
}

Result<void> Head::writable() const {
  if (!unsaved_ || clock_.now() - unsaved_since_ < options_.refuse_after) return {};
  return fail(Error(unsaved_->code() == Code::kResourceExhausted ? Code::kResourceExhausted : Code::kUnavailable,
                    "the head cannot store its state, and therefore makes no decisions: " + unsaved_->message())
                  .with_reason("NotDurable")
                  .with_hint(unsaved_->hint()));
}

void Head::perform(Action action) {
  log_->debug("action {}", to_string(action));
  struct Visitor {
    Head& head;
    void operator()(const StartWorkerOn& a) {
      const WorkerId worker = a.message.worker;
      const auto watchers = head.job_watchers_.find(a.message.job);
      if (watchers != head.job_watchers_.end() && head.job_nodes_[a.message.job].insert(a.node).second) {
        head.job_is_on(a.node, watchers->second);
      }
      head.to_node(a.node, Method::kStartWorker, to_bytes(a.message), [h = &head, worker](Result<Message> r) {
        if (r) return;
        h->now();
        if (r.error().reason() == kNotReached) {
          h->log_->info("worker={} node not reached: {}", to_string(worker), r.error().message());
          h->state_.step(WorkerNotReached{worker, r.error()});
          return h->settle();
        }
        const int code = r.error().code() == Code::kNotFound ? 127 : 126;  // a shell's exit codes
        h->log_->warn("worker={} not started: {}", to_string(worker), r.error().message());
        h->state_.step(WorkerNotStarted{worker, code, r.error()});
        h->settle();
      });
    }
    void operator()(const StopWorkerOn& a) { head.to_node(a.node, Method::kStopWorker, to_bytes(a.message)); }
    void operator()(const EndJobOn& a) { head.to_node(a.node, Method::kEndJob, to_bytes(actors::JobRef{a.job})); }
    void operator()(const KillHostedOn& a) { head.to_node(a.node, Method::kKillHosted, to_bytes(a.message)); }
    // The connection may have outlived a partition; without its end the node would not learn that it was given up.
    void operator()(const Disconnect& a) {
      if (const auto watchers = head.node_watchers_.extract(a.node); !watchers.empty()) {
        head.to_watchers(watchers.mapped(), Method::kNodeGone, to_bytes(actors::NodeGone{a.node, a.cause}));
      }
      const auto it = head.nodes_.find(a.node);
      if (it == head.nodes_.end()) return;
      const std::uint64_t client = it->second->number();
      head.nodes_.erase(it);
      head.forget(client);
    }
    void operator()(const EndNodeOn& a) {
      head.log_->info("node={} leaves", to_string(a.node));
      if (const auto it = head.nodes_.find(a.node); it != head.nodes_.end()) it->second->notify(number(Method::kEndNode), {});
    }
    void operator()(const FindPortOn& a) {
      head.to_node(a.node, Method::kFreePort, {}, [h = &head, job = a.job](Result<Message> r) {
        h->now();
        if (!r && r.error().reason() == kNotReached) {
          h->state_.step(PortNotAsked{job});
        } else if (!r) {
          h->state_.step(PortFound{job, fail(r.error())});
        } else if (const auto m = from_bytes<actors::FreePort>(r->body); m) {
          h->state_.step(PortFound{job, m->port});
        } else {
          h->state_.step(PortFound{job, fail(m.error())});
        }
        h->settle();
      });
    }
    void operator()(const NotifyActor& a) {
      head.to_watchers(head.actor_watchers_[a.row.id], Method::kActorUpdate, to_bytes(a.row));
      if (a.row.state == actors::ActorState::kDead) {
        head.log_->info("actor={} dead cause='{}'", to_string(a.row.id), a.row.cause ? a.row.cause->message() : "");
        head.actor_watchers_.erase(a.row.id);
      } else {
        head.log_->info("actor={} {} worker={}", to_string(a.row.id), actors::to_string(a.row.state), to_string(a.row.worker));
      }
    }
    void operator()(const NotifyJob& a) {
      head.log_->info("job={} {} exit={}", to_string(a.row.id), actors::to_string(a.row.state), a.row.exit_code);
      const auto watchers = head.job_watchers_[a.row.id];
      head.to_watchers(watchers, Method::kJobUpdate, to_bytes(a.row));
      if (a.row.ended_unix_ms == 0) return;
      head.job_watchers_.erase(a.row.id);
      head.job_nodes_.erase(a.row.id);
      head.driver_watches_.erase(a.row.id);
    }
    void operator()(const NotifyGroup& a) {
      head.to_watchers(head.group_watchers_[a.row.id], Method::kGroupUpdate, to_bytes(a.row));
      if (a.row.state == actors::GroupState::kRemoved) head.group_watchers_.erase(a.row.id);
    }
    void operator()(AnswerHosted& a) {
      const auto it = head.hosting_.find(a.actor);
      if (it == head.hosting_.end()) return;
      if (a.result) {
        it->second.reply(body(to_bytes(*a.result)));
      } else {
        it->second.fail(a.result.error());
      }
      head.hosting_.erase(it);
    }
    void operator()(const Warn& a) {
      head.log_->warn("job={} {}", to_string(a.job), a.text);
      head.to_watchers(head.job_watchers_[a.job], Method::kWarning, to_bytes(actors::Warning{a.text}));
    }
    void operator()(const ForgetJob& a) {
      head.job_watchers_.erase(a.job);
      head.job_nodes_.erase(a.job);
    }
  };
  std::visit(Visitor{*this}, action);
}

}  // namespace shoal::scheduler
