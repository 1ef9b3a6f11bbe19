#include "scheduler/node/node.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WorkerState;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);  // delay of a heartbeat that is logged

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

}  // namespace

Node::Node(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Launcher& launcher, runtime::Log log, Options options)
    : clock_(clock),
      random_(random),
      network_(network),
      launcher_(launcher),
      log_(std::move(log)),
      options_(std::move(options)),
      id_(random.id<NodeId>()),
      memory_(options_.memory),
      objects_(clock_, network_, memory_, log_, options_.objects, options_.peer_nodes,
               [this]() -> Peer* { return head_ && registered_ && head_->connected() ? head_.get() : nullptr; },
               {[this](WorkerId worker) { return workers_.contains(worker); }, [this] { return usage_.board(); },
                [this](std::uint64_t bytes) { want_room(bytes, nullptr); },
                [this](std::uint64_t connection) -> std::size_t {
                  const auto it = clients_.find(connection);
                  return it == clients_.end() ? 0 : it->second.peer->queued_bytes();
                }}),
      usage_(Objects::kMember, options_.object_store_bytes),
      logs_(options_.logs),
      devices_(options_.gpus),
      monitor_(
          clock_, log_, options_.monitor, [this] { return memory_users(); },
          [this](WorkerId worker) { launcher_.signal(worker, SIGKILL); }),
      heads_(options_.heads) {
  answer_head();
  answer_nodes();
  answer_clients();
  answer_object_clients();
  launcher_.set_events(this);
  objects_.start_as(id_);
}

Node::~Node() {
  *alive_ = false;
  clients_.clear();  // before pending answers: clients see a broken connection
  launcher_.set_events(nullptr);
}

Result<void> Node::start() {
  SHOAL_TRY(listener_, network_.listen(options_.listen, [this](std::unique_ptr<runtime::Connection> connection) {
    const std::uint64_t number = next_client_++;
    clients_[number].peer = std::make_unique<Peer>(std::move(connection), clock_, *this, number);
  }));
  log_->info("node={} listening endpoint={}", to_string(id_), listener_->endpoint().to_string());
  if (options_.ends_with_owner) {
    owner_watch_ = launcher_.watch(options_.owner, [this] {
      owner_gone_ = true;
      check_owner();
    });
  }
  monitor_.start();
  connect_head();
  return {};
}

// ---- the head
// ----------------------------------------------------------------------------------------------------------------------

void Node::connect_head() {
  // A head that stands still may accept a connection and not answer.
  const auto timeout = heads_.size() > 1 ? std::min(options_.connect_timeout, options_.head_silence) : options_.connect_timeout;
  network_.connect(heads_[at_head_], runtime::Role::kNode, timeout,
                   [this, alive = alive_](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (!*alive || ending_) return;
                     if (!connection) return head_is_gone(connection.error().message());
                     head_ = std::make_unique<Peer>(*std::move(connection), clock_, *this);
                     heads_news_.reset();
                     register_with_head();
                   });
}

// Tries the next head, after a pause when all were tried.
void Node::head_is_gone(const std::string& why) {
  log_->debug("no head at {}: {}", heads_[at_head_].to_string(), why);
  at_head_ = (at_head_ + 1) % heads_.size();
  if (++heads_tried_ % heads_.size() != 0) return connect_head();
  const auto pause = heads_.size() > 1 ? options_.reconnect_several : options_.reconnect;
  reconnecting_ = clock_.after(pause, [this] { connect_head(); });
}

std::vector<std::string> Node::ways() const {
  std::vector<std::string> out = {heads_[at_head_].to_string()};
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (i != at_head_) out.push_back(heads_[i].to_string());
  }
  return out;
}

void Node::heads_are(const std::vector<std::string>& reported) {
  const auto in_use = heads_[at_head_];
  auto heads = options_.heads;
  for (const auto& text : reported) {
    const auto endpoint = runtime::parse_endpoint(text);
    if (endpoint && std::find(heads.begin(), heads.end(), *endpoint) == heads.end()) heads.push_back(*endpoint);
  }
  auto at = std::find(heads.begin(), heads.end(), in_use);
  if (at == heads.end()) at = heads.insert(heads.end(), in_use);
  at_head_ = static_cast<std::size_t>(at - heads.begin());
  heads_ = std::move(heads);
  const auto now = ways();
  if (now == reported_) return;
  const bool moved = !reported_.empty() && reported_.front() != now.front();
  reported_ = now;
  log_->info("heads={}", fmt::join(now, ","));
  for (auto& [key, client] : clients_) client.peer->notify(number(Method::kHeads), body(to_bytes(actors::Heads{now, moved})));
}

void Node::register_with_head() {
  const actors::RegisterNode me{id_, options_.host, options_.pid, listener_->endpoint().to_string(), options_.resources, options_.labels};
  head_->call(number(Method::kRegisterNode), body(to_bytes(me)), options_.connect_timeout, [this, alive = alive_](Result<Message> r) {
    if (!*alive || ending_) return;
    if (!r) {
      log_->warn("not registered: {}", r.error().message());
      if (r.error().reason() == "Fenced") {
        // This node was given up and its workers declared dead: it ends them before it comes back as another node.
        for (auto& [id, w] : workers_) {
          if (!w.launched) continue;
          w.doomed = true;  // killed as soon as it has a pid
          launcher_.signal(id, SIGKILL);
        }
        become(random_.id<NodeId>());
        exits_.clear();
      }
      head_.reset();
      reconnecting_ = clock_.after(options_.reconnect, [this] { connect_head(); });
      return;
    }
    heads_tried_ = 0;
    registered_ = true;
    if (const auto m = from_bytes<actors::RegisteredNode>(r->body)) {
      if (m->heartbeat_ms > 0) heartbeat_ms_ = m->heartbeat_ms;
      heads_are(heads_news_.value_or(m->heads));
    }
    // Repeats what a head that was away has missed.
    for (const Bytes& exit : exits_) head_->notify(number(Method::kWorkerUpdate), body(exit.clone()));
    for (const auto& [id, w] : workers_) report(w);
    beat();
    objects_.peer_nodes().head_is_here();
    if (options_.on_registered) options_.on_registered();
  });
}

// Takes a new id. Connections from other nodes were to the old one and are closed.
void Node::become(NodeId id) {
  id_ = id;
  objects_.start_as(id);
  std::erase_if(clients_, [this](const auto& client) {
    if (!client.second.node) return false;
    objects_.parts().closed(client.first);
    return true;
  });
}

void Node::beat() {
  if (!head_ || !registered_) return;
  if (heads_.size() == 1) {
    head_->notify(number(Method::kHeartbeat), {});
  } else {  // a head that stands still or is cut off keeps its connections, while another leads
    head_->call(number(Method::kHeartbeat), {}, options_.head_silence, [this, alive = alive_](Result<Message> r) {
      if (!*alive || r || r.error().code() != Code::kDeadlineExceeded) return;
      if (head_) head_->close(unavailable("the head does not answer"));
    });
  }
  const auto pause = std::chrono::milliseconds(heartbeat_ms_);
  beating_ = clock_.after(pause, [this, due = clock_.now() + pause] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("the event loop was blocked for {} ms", late.count());
    beat();
  });
}

// Reports an exit now, and again to a head that was away.
void Node::report_exit(const Worker& w, std::int32_t shell_code, const Error& cause) {
  report(w, shell_code, cause);
  exits_.push_back(
      to_bytes(actors::WorkerUpdate{w.spec.worker, WorkerState::kExited, w.pid, w.endpoint, shell_code, cause, w.spec.job, w.role}));
  if (exits_.size() > options_.max_ended) exits_.pop_front();
}

void Node::report(const Worker& w, std::int32_t shell_code, const std::optional<Error>& cause) {
  if (!head_ || !registered_) return;
  head_->notify(number(Method::kWorkerUpdate),
                body(to_bytes(actors::WorkerUpdate{w.spec.worker, w.state, w.pid, w.endpoint, shell_code, cause, w.spec.job, w.role})));
}

// ---- clients
// -----------------------------------------------------------------------------------------------------------------------

// A process or node that is gone has no calls to cancel.
void Node::cancel_result(const actors::CancelResult& cancel, runtime::Responder responder) {
  const NodeId home = cancel.object.home;
  if (!home || home == id_) return cancel_here(cancel, std::move(responder));
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  objects_.peer_nodes().call(home, Method::kCancelResult, to_bytes(cancel), [shared](Result<Message> r) {
    if (!r && r.error().reason() == "OwnerDied") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

void Node::cancel_here(const actors::CancelResult& cancel, runtime::Responder responder) {
  const auto it = workers_.find(cancel.owner);
  if (it == workers_.end() || it->second.peer == nullptr) return responder.reply(Message());
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  it->second.peer->call(number(Method::kCancelResult), body(to_bytes(cancel)), Peer::kNoTimeout, [shared](Result<Message> r) {
    if (!r && r.error().reason() == "Disconnected") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

void Node::want_room(std::uint64_t bytes, const Peer* but) {
  for (auto& [key, client] : clients_) {
    if (client.peer.get() != but && client.worker) client.peer->notify(number(Method::kMakeRoom), body(to_bytes(actors::MakeRoom{bytes})));
  }
}

void Node::on_drained(Peer& peer) { objects_.parts().drained(peer.number()); }

void Node::on_closed(Peer& peer, const Error& why) {
  if (&peer == head_.get()) {
    const auto owned = std::move(head_);
    registered_ = false;
    log_->warn("the head is gone: {}", why.message());
    if (ending_) return;
    const bool several = heads_.size() > 1;
    if (several) at_head_ = (at_head_ + 1) % heads_.size();
    reconnecting_ = clock_.after(several ? options_.reconnect_several : options_.reconnect, [this] { connect_head(); });
    return;
  }
  const auto it = clients_.find(peer.number());
  const auto owned = std::move(it->second);  // destroyed on return
  // A closed connection is no death; the pidfd reports that. A forked child may hold the socket open, or a user may have closed it.
  if (const auto w = workers_.find(owned.worker); w != workers_.end() && w->second.peer == &peer) {
    w->second.peer = nullptr;
    metrics_.left(owned.worker);
  }
  for (auto& [job, peers] : followers_) peers.erase(peer.number());
  clients_.erase(it);
  objects_.parts().closed(peer.number());
}

Result<actors::WithExtras<actors::Attached>> Node::attach(const Sender& sender, const actors::Attach& m) {
  Peer& peer = sender.peer;
  Client& client = *sender.client;
  using Reply = actors::WithExtras<actors::Attached>;
  const pid_t pid = peer.identity().pid;
  WorkerId id = m.worker;
  auto it = workers_.find(id);
  // A process that a worker started (a script run by a shell) is a worker of its own, with its own death. A worker may attach before its
  // launcher has reported its pid.
  if (it == workers_.end() || (it->second.launched && it->second.pid != 0 && peer.identity().local && it->second.pid != pid)) {
    if (m.worker && it == workers_.end()) return fail(not_found("no worker " + to_string(m.worker) + " on this node"));
    if (!m.worker && !m.job) {  // a tool that only looks
      client.job = {};
      return Reply{{id_, {}, fmt::format("{}", fmt::join(ways(), ",")), options_.session, options_.host, {}}, {}, {}};
    }
    const JobId job = m.worker ? it->second.spec.job : m.job;
    id = random_.id<WorkerId>();
    it = workers_.emplace(id, Worker{}).first;
    Worker& w = it->second;
    w.spec.worker = id;
    w.spec.job = job;
    w.pid = pid;
    w.inside = static_cast<bool>(m.worker);
    w.role = m.role.empty() ? "process" : m.role;
    w.state = WorkerState::kRunning;
    w.watch = launcher_.watch(pid, [this, id] {
      const auto& gone = workers_.at(id);
      worker_gone(id, 128 + SIGKILL, unavailable(fmt::format("{} (pid {}) ended", gone.role, gone.pid)).with_reason("WorkerDied"));
    });
    log_->info("worker={} attached pid={} role={} job={}", to_string(id), pid, w.role, to_string(job));
    report(w);
  }
  if (const auto before = workers_.find(client.worker); before != workers_.end() && before->second.peer == &peer)
    before->second.peer = nullptr;
  it->second.peer = &peer;
  client.worker = id;
  client.job = it->second.spec.job;
  Reply out{
      {id_, client.job, fmt::format("{}", fmt::join(ways(), ",")), options_.session, options_.host, id, -1, options_.objects.spill_folder},
      {},
      {}};
  auto shared = usage_.share(it->second.member);
  if (!shared) log_->warn("no usage board: {}", shared.error().message());
  if (shared && *shared) {
    out.body.member = it->second.member;
    out.fds.push_back(**std::move(shared));
  }
  return out;
}

// ---- the end
// -----------------------------------------------------------------------------------------------------------------------

void Node::check_owner() {
  if (!options_.ends_with_owner || !owner_gone_ || ending_) return;
  for (const auto& [id, w] : workers_) {
    if (!w.launched && !w.inside) return;  // another rank still runs
  }
  end("the processes it was started for are gone");
}

void Node::end(const std::string& why) {
  if (ending_) return;
  ending_ = why;
  if (options_.on_ending) options_.on_ending();
  log_->info("node={} ending: {}", to_string(id_), why);
  for (auto& [id, w] : workers_) launcher_.signal(id, SIGTERM);
  killing_ = clock_.after(options_.stop_grace, [this] {
    for (auto& [id, w] : workers_) launcher_.signal(id, SIGKILL);
  });
  check_ended();
}

void Node::check_ended() {
  if (!ending_) return;
  for (const auto& [id, w] : workers_) {
    if (w.launched) return;
  }
  // Deferred until reports are on their way.
  killing_ = clock_.after(std::chrono::milliseconds(0), [this] {
    if (options_.on_end) options_.on_end(*ending_);
  });
}

}  // namespace shoal::scheduler
