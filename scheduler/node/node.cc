#include "scheduler/node/node.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/wire/log_files.h"
#include "actors/wire/task_log.h"
#include "runtime/wire/codec.h"
#include "scheduler/node/log_files.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WorkerState;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);          // delay of a heartbeat that is logged
constexpr std::size_t kMaxReadBytes = 32u << 20;  // per read of a log

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
               {[this](WorkerId worker) { return workers_.contains(worker); },
                [this]() -> std::optional<runtime::UsageBoard> {
                  return membership_page_ ? std::optional<runtime::UsageBoard>(membership_page_->data()) : std::nullopt;
                },
                [this](std::uint64_t bytes) { want_room(bytes, nullptr); },
                [this](std::uint64_t connection) -> std::size_t {
                  const auto it = clients_.find(connection);
                  return it == clients_.end() ? 0 : it->second.peer->queued_bytes();
                }}),
      logs_(options_.logs),
      devices_(options_.gpus),
      monitor_(
          clock_, log_, options_.monitor, [this] { return memory_users(); },
          [this](WorkerId worker) { launcher_.signal(worker, SIGKILL); }),
      heads_(options_.heads) {
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

void Node::on_request(Peer& peer, runtime::Request request, runtime::Responder responder) {
  bool later = false;
  auto result = answer(peer, static_cast<Method>(request.method), request.message, responder, later);
  if (!later) responder.answer(std::move(result));
}

Result<Message> Node::answer(Peer& peer, Method method, Message& message, runtime::Responder& responder, bool& later) {
  if (&peer == head_.get()) {
    switch (method) {
      case Method::kStartWorker: {
        SHOAL_TRY(const auto spec, from_bytes<actors::StartWorker>(message.body));
        later = true;
        start_worker(spec, std::move(responder));
        return Message();
      }
      case Method::kStopWorker: {
        SHOAL_TRY(const auto stop, from_bytes<actors::StopWorker>(message.body));
        stop_worker(stop);
        return Message();
      }
      case Method::kEndJob: {
        SHOAL_TRY(const auto ref, from_bytes<actors::JobRef>(message.body));
        end_job(ref.job);
        return Message();
      }
      case Method::kKillHosted: {
        SHOAL_TRY(const auto kill, from_bytes<actors::KillHosted>(message.body));
        const auto it = workers_.find(kill.worker);
        if (it == workers_.end() || it->second.peer == nullptr) return fail(not_found("no process " + to_string(kill.worker)));
        it->second.peer->notify(number(Method::kKillHere), body(message.body.clone()));
        return Message();
      }
      case Method::kFreePort: {
        SHOAL_TRY(const std::uint16_t port, launcher_.free_port());
        return body(to_bytes(actors::FreePort{port}));
      }
      default:
        return fail(unimplemented("a node does not implement method " + std::to_string(number(method)) + " of a head"));
    }
  }
  if (method == actors::kInspect) {
    SHOAL_TRY(const auto m, from_bytes<actors::Inspect>(message.body));
    later = true;
    inspect(m, std::move(responder));
    return Message();
  }
  if (method == actors::kCancelResult) {
    if (peer.identity().role == runtime::Role::kNode) return answer_node(peer, method, message, responder, later);
    SHOAL_TRY(const auto m, from_bytes<actors::CancelResult>(message.body));
    if (!clients_.at(peer.number()).worker) return fail(invalid_argument("attach first: a process without a job has no references"));
    later = true;
    cancel_result(m, std::move(responder));
    return Message();
  }
  if (method == actors::kReadTaskLog) {
    SHOAL_TRY(const auto m, from_bytes<actors::ReadTaskLog>(message.body));
    const std::size_t bytes = std::min<std::uint64_t>(m.log.tail_bytes, kMaxReadBytes);
    SHOAL_TRY(const std::string text, logs_.read(m.log.worker, static_cast<Launcher::Stream>(m.log.stream), bytes, {m.caller, m.number}));
    return Message{{}, Bytes::copy_of(text), {}};
  }
  if (method == actors::kReadLogFile) {
    SHOAL_TRY(const auto m, from_bytes<actors::ReadLogFile>(message.body));
    const std::string& folder = options_.logs.folder;
    if (m.name.empty()) return Message{{}, Bytes::copy_of(fmt::format("{}", fmt::join(log_files(folder), "\n"))), {}};
    SHOAL_TRY(const std::string text, read_log_file(folder, m.name, std::min<std::uint64_t>(m.tail_bytes, kMaxReadBytes)));
    return Message{{}, Bytes::copy_of(text), {}};
  }
  if (method == actors::kLastMetrics) {
    SHOAL_TRY(auto last, from_bytes<actors::ReportedMetrics>(message.payload));
    const auto it = workers_.find(clients_.at(peer.number()).worker);
    if (it == workers_.end()) return fail(not_found("this process has not attached to the node"));
    metrics_.reported(it->first, {it->second.spec.job, it->second.role, it->second.pid}, std::move(last.metrics));
    return Message();
  }
  switch (method) {
    case Method::kMeetNode:
    case Method::kCountObjects:
    case Method::kPullObject:
      return answer_node(peer, method, message, responder, later);
    case Method::kAttach: {
      SHOAL_TRY(const auto m, from_bytes<actors::Attach>(message.body));
      return attach(peer, m);
    }
    case Method::kWorkerReady: {
      SHOAL_TRY(const auto m, from_bytes<actors::WorkerUpdate>(message.body));
      const auto it = workers_.find(clients_.at(peer.number()).worker);
      if (it == workers_.end()) return fail(not_found("this process has not attached to the node"));
      it->second.endpoint = m.endpoint;
      it->second.state = WorkerState::kRunning;
      report(it->second);
      return Message();
    }
    case Method::kOpenArena: {
      SHOAL_TRY(const auto m, from_bytes<actors::OpenArena>(message.body));
      return open_arena(peer, m);
    }
    case Method::kDropArena: {
      SHOAL_TRY(const auto m, from_bytes<actors::ArenaRef>(message.body));
      memory_.drop(clients_.at(peer.number()).job, m.key, clients_.at(peer.number()).worker);
      return Message();
    }
    case Method::kGetObject: {
      SHOAL_TRY(const auto m, from_bytes<actors::ObjectRef>(message.body));
      const Client& client = clients_.at(peer.number());
      later = true;
      objects_.get(m.job ? m.job : client.job, client.worker, m, std::move(responder));
      return Message();
    }
    case Method::kFollowLogs: {
      SHOAL_TRY(const auto m, from_bytes<actors::JobRef>(message.body));
      follow(peer, m.job);
      return Message();
    }
    case Method::kSyncLogs:
      launcher_.drain_output();
      return Message();
    case Method::kReadLog: {
      SHOAL_TRY(const auto m, from_bytes<actors::ReadLog>(message.body));
      const std::size_t bytes = std::min<std::uint64_t>(m.tail_bytes, kMaxReadBytes);
      SHOAL_TRY(const std::string text, logs_.read(m.worker, static_cast<Launcher::Stream>(m.stream), bytes));
      return Message{{}, Bytes::copy_of(text), {}};
    }
    case Method::kEndNode:
      end("it was asked to");
      return Message();
    default:
      return fail(unimplemented("a node does not implement method " + std::to_string(number(method))));
  }
}

// A process or node that is gone has no calls to cancel.
void Node::cancel_result(const actors::CancelResult& cancel, runtime::Responder responder) {
  const NodeId home = cancel.object.home;
  if (!home || home == id_) return cancel_here(cancel, std::move(responder));
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  objects_.peer_nodes().call(home, actors::kCancelResult, to_bytes(cancel), [shared](Result<Message> r) {
    if (!r && r.error().reason() == "OwnerDied") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

void Node::cancel_here(const actors::CancelResult& cancel, runtime::Responder responder) {
  const auto it = workers_.find(cancel.owner);
  if (it == workers_.end() || it->second.peer == nullptr) return responder.reply(Message());
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  it->second.peer->call(number(actors::kCancelResult), body(to_bytes(cancel)), Peer::kNoTimeout, [shared](Result<Message> r) {
    if (!r && r.error().reason() == "Disconnected") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

Result<Message> Node::answer_node(Peer& peer, Method method, Message& message, runtime::Responder& responder, bool& later) {
  if (peer.identity().role != runtime::Role::kNode) return fail(invalid_argument("only a node may send this request"));
  Client& client = clients_.at(peer.number());
  if (method == Method::kMeetNode) {
    SHOAL_TRY(const auto meeting, from_bytes<actors::MeetNode>(message.body));
    SHOAL_OK(objects_.met(meeting));
    client.node = meeting.caller;
    return Message();
  }
  if (!client.node) return fail(invalid_argument("send MeetNode first"));
  if (method == Method::kCountObjects) {
    SHOAL_TRY(const auto news, from_bytes<actors::CountObjects>(message.body));
    objects_.reported(client.node, news);
    return Message();
  }
  if (method == actors::kCancelResult) {
    SHOAL_TRY(const auto cancel, from_bytes<actors::CancelResult>(message.body));
    later = true;
    cancel_here(cancel, std::move(responder));
    return Message();
  }
  SHOAL_TRY(const auto asked, from_bytes<actors::PullObject>(message.body));
  later = true;
  objects_.pull(asked, peer, std::move(responder));
  return Message();
}

void Node::want_room(std::uint64_t bytes, const Peer* but) {
  for (auto& [key, client] : clients_) {
    if (client.peer.get() != but && client.worker) client.peer->notify(number(Method::kMakeRoom), body(to_bytes(actors::MakeRoom{bytes})));
  }
}

void Node::on_notice(Peer& peer, runtime::Request notice) {
  switch (static_cast<Method>(notice.method)) {
    case Method::kEndNode:
      if (&peer == head_.get()) end("the head shuts the cluster down");
      return;
    case Method::kHeads:
      if (const auto m = from_bytes<actors::Heads>(notice.message.body); m && &peer == head_.get()) {
        if (registered_) {
          heads_are(m->endpoints);
        } else {
          heads_news_ = m->endpoints;
        }
      }
      return;
    case Method::kNodeGone:
      if (const auto news = from_bytes<actors::NodeGone>(notice.message.body); news && &peer == head_.get()) {
        objects_.peer_nodes().head_said_gone(*news);
      }
      return;
    case Method::kPutObject: {
      auto& m = notice.message;
      const auto object = from_bytes<actors::ObjectRef>(m.body);
      const auto it = clients_.find(peer.number());
      if (!object || it == clients_.end()) return log_->warn("malformed PutObject notice");
      Result<Fd> memory = fail(resource_exhausted("the node has no descriptor left for the object"));
      if (m.fds.size() == 1) {
        memory = std::move(m.fds[0]);
      } else if (!m.payload.empty()) {
        memory = fail(runtime::decode_error(m.payload));
      }
      objects_.put(it->second.job, it->second.worker, *object, std::move(memory));
      return;
    }
    case Method::kDropObject: {
      const auto m = from_bytes<actors::ObjectRef>(notice.message.body);
      const auto it = clients_.find(peer.number());
      if (m && it != clients_.end()) objects_.drop(it->second.job, it->second.worker, *m);
      return;
    }
    case Method::kMakeRoom:
      if (const auto m = from_bytes<actors::MakeRoom>(notice.message.body)) {
        objects_.make_room(m->bytes);
        want_room(m->bytes, &peer);
      }
      return;
    case Method::kMoveObject: {
      auto& m = notice.message;
      const auto object = from_bytes<actors::ObjectRef>(m.body);
      const auto it = clients_.find(peer.number());
      if (object && it != clients_.end() && m.fds.size() == 1)
        objects_.move(it->second.job, it->second.worker, {object->job, object->id, object->home}, std::move(m.fds[0]));
      return;
    }
    case Method::kCountObjects: {
      const auto m = from_bytes<actors::CountObjects>(notice.message.body);
      const auto it = clients_.find(peer.number());
      if (m && it != clients_.end()) objects_.count(it->second.worker, *m);
      return;
    }
    default:
      log_->warn("unknown notice {}", notice.method);
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

Result<Message> Node::attach(Peer& peer, const actors::Attach& m) {
  auto& client = clients_.at(peer.number());
  const pid_t pid = peer.identity().pid;
  WorkerId id = m.worker;
  auto it = workers_.find(id);
  // A process that a worker started (a script run by a shell) is a worker of its own, with its own death. A worker may attach before its
  // launcher has reported its pid.
  if (it == workers_.end() || (it->second.launched && it->second.pid != 0 && peer.identity().local && it->second.pid != pid)) {
    if (m.worker && it == workers_.end()) return fail(not_found("no worker " + to_string(m.worker) + " on this node"));
    if (!m.worker && !m.job) {  // a tool that only looks
      client.job = {};
      return body(to_bytes(actors::Attached{id_, {}, fmt::format("{}", fmt::join(ways(), ",")), options_.session, options_.host, {}}));
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
  Message out;
  if (const auto shared = share_membership_page(it->second, out); !shared) log_->warn("no membership page: {}", shared.error().message());
  const std::int32_t member = out.fds.empty() ? -1 : it->second.member;
  out.body = to_bytes(actors::Attached{id_, client.job, fmt::format("{}", fmt::join(ways(), ",")), options_.session, options_.host, id,
                                       member, options_.objects.spill_folder});
  return out;
}

Result<void> Node::share_membership_page(Worker& worker, Message& reply) {
  using runtime::UsageBoard;
  if (options_.object_store_bytes == 0) return {};
  if (!membership_page_) {
    SHOAL_TRY(membership_memory_, runtime::make_memory("shoal:board", UsageBoard::kBytes));
    SHOAL_TRY(membership_page_, runtime::map(membership_memory_, UsageBoard::kBytes, runtime::Access::kReadWrite));
    UsageBoard(membership_page_->data()).set_limit(options_.object_store_bytes);
    membership_pages_of_.insert(static_cast<std::int32_t>(Objects::kMember));
  }
  if (worker.member < 0) {
    std::int32_t member = 0;
    while (membership_pages_of_.contains(member)) ++member;
    if (static_cast<std::size_t>(member) >= UsageBoard::kMaxMembers) return {};
    membership_pages_of_.insert(member);
    worker.member = member;
    UsageBoard(membership_page_->data()).clear(static_cast<std::size_t>(member));
    UsageBoard(membership_page_->data()).set_members(static_cast<std::size_t>(*membership_pages_of_.rbegin()) + 1);
  }
  SHOAL_TRY(Fd copy, runtime::duplicate(membership_memory_));
  reply.fds.push_back(std::move(copy));
  return {};
}

Result<Message> Node::open_arena(Peer& peer, const actors::OpenArena& m) {
  const auto& client = clients_.at(peer.number());
  if (!client.worker) return fail(invalid_argument("attach to a job before opening an arena"));
  SHOAL_TRY(auto opened, memory_.open(client.job, m.key, m.bytes, client.worker));
  if (m.member >= 0) SHOAL_OK(memory_.join_membership_page(client.job, m.key, client.worker, static_cast<std::uint32_t>(m.member)));
  Message out = body(to_bytes(actors::OpenedArena{opened.created}));
  out.fds.push_back(std::move(opened.memory));
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
  if (std::exchange(ending_, true)) return;
  end_reason_ = why;
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
    if (options_.on_end) options_.on_end(end_reason_);
  });
}

}  // namespace shoal::scheduler
