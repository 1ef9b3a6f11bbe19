#include "scheduler/node/node.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/cluster/function_worker.h"
#include "actors/wire/log_files.h"
#include "actors/wire/task_log.h"
#include "runtime/wire/codec.h"
#include "scheduler/node/log_files.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Launch;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WorkerState;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);  // of a heartbeat, to be worth a word
constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";
constexpr const char* kRuntimeEnv = "SHOAL_RUNTIME_ENV";  // python/shoal/_environment.py
constexpr std::size_t kMaxReadBytes = 32u << 20;          // of a log, at once

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

// How a process ended, with what it said last: the first cause that everybody downstream reports.
Error death(std::string text, const std::string& tail, const std::string& reason, const std::string& hint) {
  if (!tail.empty())
    text += "\nlast lines of its stderr:\n  " + [&] {
      std::string indented;
      for (const char c : tail) indented += c == '\n' ? std::string("\n  ") : std::string(1, c);
      return indented;
    }();
  return unavailable(std::move(text)).with_reason(reason).with_hint(hint);
}

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
      objects_(clock_, network_, memory_, log_, options_.objects, options_.neighbours,
               [this]() -> Peer* { return head_ && registered_ && head_->connected() ? head_.get() : nullptr; },
               {[this](WorkerId worker) { return workers_.contains(worker); },
                [this]() -> std::optional<runtime::UsageBoard> {
                  return board_ ? std::optional<runtime::UsageBoard>(board_->data()) : std::nullopt;
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
  // One that stands still is dialled, and says nothing.
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

// The next one, after a pause when all were tried.
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

void Node::heads_are(const std::vector<std::string>& told) {
  const auto in_use = heads_[at_head_];
  auto heads = options_.heads;
  for (const auto& text : told) {
    const auto endpoint = runtime::parse_endpoint(text);
    if (endpoint && std::find(heads.begin(), heads.end(), *endpoint) == heads.end()) heads.push_back(*endpoint);
  }
  auto at = std::find(heads.begin(), heads.end(), in_use);
  if (at == heads.end()) at = heads.insert(heads.end(), in_use);
  at_head_ = static_cast<std::size_t>(at - heads.begin());
  heads_ = std::move(heads);
  const auto now = ways();
  if (now == told_) return;
  const bool moved = !told_.empty() && told_.front() != now.front();
  told_ = now;
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
        // We were given up and our workers declared dead: make that true before coming back as another
        // node.
        for (auto& [id, w] : workers_) {
          if (!w.launched) continue;
          w.doomed = true;  // as soon as it has a pid
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
    // A head that was away hears what it missed.
    for (const Bytes& exit : exits_) head_->notify(number(Method::kWorkerUpdate), body(exit.clone()));
    for (const auto& [id, w] : workers_) report(w);
    beat();
    objects_.neighbours().head_is_here();
    if (options_.on_registered) options_.on_registered();
  });
}

// What other nodes knew of the one it was is lost; those who were connected to that one find out.
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
  } else {  // one that stands still, or is cut off, keeps its connections, and another leads
    head_->call(number(Method::kHeartbeat), {}, options_.head_silence, [this, alive = alive_](Result<Message> r) {
      if (!*alive || r || r.error().code() != Code::kDeadlineExceeded) return;
      if (head_) head_->close(unavailable("the head is silent"));
    });
  }
  const auto pause = std::chrono::milliseconds(heartbeat_ms_);
  beating_ = clock_.after(pause, [this, due = clock_.now() + pause] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("this loop stood still for {} ms", late.count());
    beat();
  });
}

// Now, and again to a head that was away.
void Node::tell_exit(const Worker& w, std::int32_t shell_code, const Error& cause) {
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
        return fail(unimplemented("a node does not know method " + std::to_string(number(method)) + " of a head"));
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
    if (!clients_.at(peer.number()).worker) return fail(invalid_argument("attach first: who is of no job has no references"));
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
    SHOAL_TRY(auto last, from_bytes<actors::ToldMetrics>(message.payload));
    const auto it = workers_.find(clients_.at(peer.number()).worker);
    if (it == workers_.end()) return fail(not_found("attach first"));
    metrics_.told(it->first, {it->second.spec.job, it->second.role, it->second.pid}, std::move(last.metrics));
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
      if (it == workers_.end()) return fail(not_found("attach first"));
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
      return fail(unimplemented("a node does not know method " + std::to_string(number(method))));
  }
}

void Node::inspect(const actors::Inspect& asked, runtime::Responder responder) {
  actors::ToldNode begun;
  begun.node = id_;
  begun.pid = options_.pid;
  if (board_) {
    const runtime::UsageBoard board(board_->data());
    begun.kept_bytes = board.total().kept;
    begun.spilled_bytes = board.total().spilled;
    begun.limit_bytes = board.limit();
  }
  if (asked.what == actors::Inspect::What::kObjects) begun.objects = tell_objects(memory_, objects_.references());
  if (asked.what == actors::Inspect::What::kEnvironments) {
    std::map<std::string, std::uint32_t> counts;
    for (const auto& [id, w] : workers_) {
      for (const auto& [name, value] : w.spec.launch.env) {
        if (name == kRuntimeEnv && value != "{}") ++counts[value];
      }
    }
    for (const auto& [text, processes] : counts) begun.environments.push_back({text, processes});
  }
  const auto inspection = std::make_shared<Inspection>(std::move(begun), asked, std::move(responder));
  if (asked.what == actors::Inspect::What::kMetrics) measure(*inspection);
  for (const auto& [id, w] : workers_) {
    if (w.peer == nullptr || asked.what == actors::Inspect::What::kEnvironments) continue;
    inspection->ask(*w.peer, {id, w.spec.job, w.pid, w.role, {}, {}, 0, {}});
  }
  inspection->asked_all();
}

// A process or node that is gone has no calls: there is nothing to cancel then.
void Node::cancel_result(const actors::CancelResult& cancel, runtime::Responder responder) {
  const NodeId home = cancel.object.home;
  if (!home || home == id_) return cancel_here(cancel, std::move(responder));
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  objects_.neighbours().call(home, actors::kCancelResult, to_bytes(cancel), [shared](Result<Message> r) {
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

void Node::measure(Inspection& inspection) {
  const auto heard = [this, alive = alive_](actors::ToldProcess& process) {
    // One that has ended meanwhile left what it had told before.
    if (*alive && workers_.contains(process.worker)) {
      metrics_.told(process.worker, {process.job, process.role, process.pid}, std::move(process.metrics));
    }
    process.metrics.clear();
  };
  const auto machine = std::make_shared<std::vector<actors::MetricFamily>>();
  const auto all = [this, alive = alive_, machine](actors::ToldNode& told) {
    if (!*alive) return;
    std::set<WorkerId> silent;
    for (const auto& process : told.processes) {
      if (process.silent) silent.insert(process.worker);
    }
    told.processes.clear();
    told.metrics = own_metrics();
    std::move(machine->begin(), machine->end(), std::back_inserter(told.metrics));
    const auto sums = metrics_.sums(silent);
    auto of_processes = sums.families();
    std::move(of_processes.begin(), of_processes.end(), std::back_inserter(told.metrics));
    using actors::FamilyOf;
    told.metrics.push_back(
        FamilyOf(actors::MetricKind::kGauge, "shoal_node_silent_processes",
                 "Processes that did not answer this scrape in time: their gauges are missing, their counters are older.")
            .add(static_cast<double>(silent.size())));
    told.metrics.push_back(FamilyOf(actors::MetricKind::kGauge, "shoal_node_left_out_series",
                                    "Series of this scrape that could not be added up (several kinds under one name), or are too many.")
                               .add(static_cast<double>(sums.left_out())));
    told.metrics.push_back(FamilyOf(actors::MetricKind::kCounter, "shoal_node_refused_samples_total",
                                    "Samples that processes told and Prometheus could not read: names, labels, too long, too many.")
                               .add(static_cast<double>(metrics_.left_out())));
  };
  inspection.pass_through(heard, all);
  if (!options_.measure) return;
  // Whichever comes first.
  const auto done = std::make_shared<std::function<void()>>(inspection.expect());
  const auto finish = [done] {
    if (const auto once = std::exchange(*done, {})) once();
  };
  const auto late = std::make_shared<runtime::Timer>(clock_.after(Inspection::kMetricsPatience, finish));
  options_.measure([machine, finish, late](std::vector<actors::MetricFamily> measured) {
    *late = {};
    *machine = std::move(measured);
    finish();
  });
}

std::vector<actors::MetricFamily> Node::own_metrics() const {
  using actors::MetricFamily;
  const auto gauge = [](const char* name, const char* help, auto value) -> MetricFamily {
    return actors::FamilyOf(actors::MetricKind::kGauge, name, help).add(static_cast<double>(value));
  };
  std::vector<MetricFamily> out = {
      gauge("shoal_node_processes", "Workers and drivers on the node.", workers_.size()),
      gauge("shoal_object_store_objects", "Objects, and arenas of meshes, that the node keeps for its processes.", memory_.num_entries())};
  if (board_) {
    const runtime::UsageBoard board(board_->data());
    out.push_back(gauge("shoal_object_store_used_bytes", "Memory that large values of the node's processes take.", board.total().kept));
    out.push_back(gauge("shoal_object_store_spilled_bytes", "Large values that were moved to files.", board.total().spilled));
    out.push_back(gauge("shoal_object_store_limit_bytes", "Memory that they may take before some are moved to files.", board.limit()));
  }
  return out;
}

Result<Message> Node::answer_node(Peer& peer, Method method, Message& message, runtime::Responder& responder, bool& later) {
  if (peer.identity().role != runtime::Role::kNode) return fail(invalid_argument("only nodes ask that"));
  Client& client = clients_.at(peer.number());
  if (method == Method::kMeetNode) {
    SHOAL_TRY(const auto meeting, from_bytes<actors::MeetNode>(message.body));
    SHOAL_OK(objects_.met(meeting));
    client.node = meeting.caller;
    return Message();
  }
  if (!client.node) return fail(invalid_argument("say first which node you are"));
  if (method == Method::kCountObjects) {
    SHOAL_TRY(const auto news, from_bytes<actors::CountObjects>(message.body));
    objects_.told(client.node, news);
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
        objects_.neighbours().head_said_gone(*news);
      }
      return;
    case Method::kPutObject: {
      auto& m = notice.message;
      const auto object = from_bytes<actors::ObjectRef>(m.body);
      const auto it = clients_.find(peer.number());
      if (!object || it == clients_.end()) return log_->warn("an object that is none was put");
      Result<Fd> memory = fail(resource_exhausted("the node had no descriptor left for the object"));
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
  const auto owned = std::move(it->second);  // destroyed when this returns
  // Not a death: the kernel tells of that (pidfd). A child that was forked may hold the socket open, or a user may have
  // closed it.
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
  // A process that a worker started (a script run by a shell) is not that worker: its death is its own. A worker may attach before
  // its launcher has told its pid.
  if (it == workers_.end() || (it->second.launched && it->second.pid != 0 && peer.identity().local && it->second.pid != pid)) {
    if (m.worker && it == workers_.end()) return fail(not_found("no worker " + to_string(m.worker) + " on this node"));
    if (!m.worker && !m.job) {  // a tool: it looks, and hosts nothing
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
  if (const auto shared = share_board(it->second, out); !shared) log_->warn("no board for objects: {}", shared.error().message());
  const std::int32_t member = out.fds.empty() ? -1 : it->second.member;
  out.body = to_bytes(actors::Attached{id_, client.job, fmt::format("{}", fmt::join(ways(), ",")), options_.session, options_.host, id,
                                       member, options_.objects.spill_folder});
  return out;
}

Result<void> Node::share_board(Worker& worker, Message& reply) {
  using runtime::UsageBoard;
  if (options_.object_store_bytes == 0) return {};
  if (!board_) {
    SHOAL_TRY(board_memory_, runtime::make_memory("shoal:board", UsageBoard::kBytes));
    SHOAL_TRY(board_, runtime::map(board_memory_, UsageBoard::kBytes, runtime::Access::kReadWrite));
    UsageBoard(board_->data()).set_limit(options_.object_store_bytes);
    board_members_.insert(static_cast<std::int32_t>(Objects::kMember));
  }
  if (worker.member < 0) {
    std::int32_t member = 0;
    while (board_members_.contains(member)) ++member;
    if (static_cast<std::size_t>(member) >= UsageBoard::kMaxMembers) return {};
    board_members_.insert(member);
    worker.member = member;
    UsageBoard(board_->data()).clear(static_cast<std::size_t>(member));
    UsageBoard(board_->data()).set_members(static_cast<std::size_t>(*board_members_.rbegin()) + 1);
  }
  SHOAL_TRY(Fd copy, runtime::duplicate(board_memory_));
  reply.fds.push_back(std::move(copy));
  return {};
}

Result<Message> Node::open_arena(Peer& peer, const actors::OpenArena& m) {
  const auto& client = clients_.at(peer.number());
  if (!client.worker) return fail(invalid_argument("attach to a job before opening an arena"));
  SHOAL_TRY(auto opened, memory_.open(client.job, m.key, m.bytes, client.worker));
  if (m.member >= 0) SHOAL_OK(memory_.join_board(client.job, m.key, client.worker, static_cast<std::uint32_t>(m.member)));
  Message out = body(to_bytes(actors::OpenedArena{opened.created}));
  out.fds.push_back(std::move(opened.memory));
  return out;
}

// ---- workers
// -----------------------------------------------------------------------------------------------------------------------

void Node::start_worker(const actors::StartWorker& spec, runtime::Responder responder) {
  if (ending_) return responder.fail(unavailable("the node is ending"));
  if (workers_.contains(spec.worker)) return responder.fail(invalid_argument("worker " + to_string(spec.worker) + " exists already"));
  Worker& w = workers_[spec.worker];
  w.spec = spec;
  w.launched = true;
  w.order = next_worker_++;
  const bool is_rank = spec.rank >= 0 && spec.label.starts_with("rank");
  w.role = is_rank || spec.label == "driver" || actors::is_function_class(spec.label) ? spec.label : "actor " + spec.label;
  if (spec.launch.torch) torch_jobs_.insert(spec.job);
  // The token is not here: it lies in the session's folder, readable by this user alone.
  Launcher::Env env = {{"SHOAL_SESSION", options_.session},
                       {"SHOAL_NODE", listener_->endpoint().to_string()},
                       {"SHOAL_ADDRESS", fmt::format("{}", fmt::join(ways(), ","))},
                       {"SHOAL_WORKER_ID", to_string(spec.worker)},
                       {"SHOAL_JOB_ID", to_string(spec.job)}};
  const bool chosen_by_user =
      std::any_of(spec.launch.env.begin(), spec.launch.env.end(), [](const auto& e) { return e.first == kVisibleDevices; });
  if (spec.gpu_units >= 0 && !devices_.empty()) {
    const auto devices = devices_.take(spec.worker, spec.gpu_units);
    if (!chosen_by_user) env.emplace_back(kVisibleDevices, fmt::format("{}", fmt::join(devices, ",")));
  }
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  launcher_.start(spec, env, [this, alive = alive_, id = spec.worker, shared](Result<pid_t> pid) {
    if (!*alive) return;
    const auto it = workers_.find(id);
    if (it == workers_.end()) return shared->fail(unavailable("worker " + to_string(id) + " is gone"));
    if (!pid) {
      log_->warn("worker={} not started: {}", to_string(id), pid.error().message());
      devices_.give_back(id);
      it->second.state = WorkerState::kExited;
      // Also to a head that is not the one who asked.
      tell_exit(it->second, pid.error().code() == Code::kNotFound ? 127 : 126, pid.error());  // as a shell has it
      workers_.erase(it);
      shared->fail(pid.error());
      return check_ended();
    }
    Worker& worker = it->second;
    worker.pid = *pid;
    // A process that hosts actors says itself when it is ready.
    const auto kind = worker.spec.launch.kind;
    if (kind == Launch::Kind::kProgram || kind == Launch::Kind::kPythonScript) worker.state = WorkerState::kRunning;
    log_->info("worker={} started pid={} label='{}' job={}", to_string(id), *pid, worker.spec.label, to_string(worker.spec.job));
    report(worker);
    shared->reply({});
    if (worker.doomed || ending_) launcher_.signal(id, SIGKILL);
  });
}

void Node::stop_worker(const actors::StopWorker& stop) {
  const auto it = workers_.find(stop.worker);
  if (it == workers_.end()) return;
  log_->info("worker={} signal={}", to_string(stop.worker), stop.signal);
  Worker& w = it->second;
  w.doomed = w.pid == 0;
  w.asked = true;
  const auto send = [this, id = stop.worker, launched = w.launched, pid = w.pid](int signal) {
    if (launched) {
      launcher_.signal(id, signal);
    } else if (pid > 1) {
      ::kill(pid, signal);  // not ours: only itself, not what it started
    }
  };
  send(stop.signal);
  if (stop.signal != SIGKILL) w.kill = clock_.after(std::chrono::milliseconds(stop.grace_ms), [send] { send(SIGKILL); });
}

void Node::end_job(JobId job) {
  for (auto& [id, w] : workers_) {
    if (w.spec.job != job || !w.launched) continue;
    w.doomed = w.asked = true;
    launcher_.signal(id, SIGKILL);
  }
  objects_.end_job(job);
  metrics_.over(job);
  if (torch_jobs_.erase(job) > 0 && torch_jobs_.empty()) launcher_.retire_torch();
}

void Node::output(WorkerId worker, Launcher::Stream stream, std::string_view lines) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return logs_.write(worker, stream, lines);
  const Worker& w = it->second;
  const auto followers = followers_.find(w.spec.job);
  divide(
      lines, [&](const TaskMark& mark) { logs_.mark(worker, stream, mark); },
      [&](std::string_view text) {
        logs_.write(worker, stream, text);
        if (followers == followers_.end()) return;
        const std::string_view function = logs_.function(worker, stream);
        for (const std::uint64_t f : followers->second) send_lines(*clients_.at(f).peer, w.spec, function, w.pid, stream, text);
      });
}

void Node::send_lines(Peer& peer, const actors::StartWorker& spec, std::string_view function, pid_t pid, Launcher::Stream stream,
                      std::string_view lines) {
  const std::string label(function.empty() ? spec.label : function);
  const actors::LogLines who{spec.worker, spec.rank, label, static_cast<std::uint16_t>(stream), pid};
  peer.notify(number(Method::kLogLines), {to_bytes(who), Bytes::copy_of(lines), {}}, runtime::Flush::kLater);
}

void Node::follow(Peer& peer, JobId job) {
  const auto backlog = [&](const actors::StartWorker& spec, pid_t pid) {
    for (const auto stream : {Launcher::Stream::kOut, Launcher::Stream::kErr}) {
      logs_.pieces(spec.worker, stream, 16u << 20,
                   [&](std::string_view function, std::string_view text) { send_lines(peer, spec, function, pid, stream, text); });
    }
  };
  for (const auto& e : ended_) {
    if (e.spec.job != job) continue;
    backlog(e.spec, e.pid);
    peer.notify(number(Method::kWorkerExited), body(e.update.clone()));
  }
  for (const auto& [id, w] : workers_) {
    if (w.spec.job == job && w.launched) backlog(w.spec, w.pid);
  }
  followers_[job].insert(peer.number());
}

void Node::exited(WorkerId worker, runtime::ExitStatus status) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  const Worker& w = it->second;
  const auto memory = monitor_.cause_of_end(worker, w.role, w.pid, status, w.asked || ending_);
  const std::string tail = logs_.tail(worker);
  worker_gone(worker, status.shell_code(),
              memory ? death(memory->message(), tail, memory->reason(), memory->hint())
                     : death(fmt::format("{} (pid {}) {}", w.role, w.pid, status.to_string()), tail, "WorkerDied", ""));
}

// Drivers, ranks of jobs and what attached by itself are not among them.
std::vector<MemoryUser> Node::memory_users() const {
  std::vector<MemoryUser> out;
  for (const auto& [id, w] : workers_) {
    const bool hosts = w.spec.launch.kind == Launch::Kind::kPythonWorker || w.spec.launch.kind == Launch::Kind::kNativeWorker;
    if (!w.launched || !hosts || w.pid == 0 || w.asked || w.doomed) continue;
    out.push_back({id, w.role, w.pid, w.spec.job, w.spec.run_again, w.order, 0});
  }
  return out;
}

void Node::worker_gone(WorkerId worker, std::int32_t shell_code, const Error& cause) {
  const auto node = workers_.extract(worker);
  Worker& w = node.mapped();
  devices_.give_back(worker);
  w.state = WorkerState::kExited;
  log_->info("worker={} pid={} ended code={}", to_string(worker), w.pid, shell_code);
  objects_.worker_gone(worker, cause.message());  // which counts what it leaves
  if (w.member >= 0) {
    runtime::UsageBoard(board_->data()).clear(static_cast<std::size_t>(w.member));
    board_members_.erase(w.member);
  }
  metrics_.ended(worker);
  const Bytes update =
      to_bytes(actors::WorkerUpdate{worker, WorkerState::kExited, w.pid, w.endpoint, shell_code, cause, w.spec.job, w.role});
  for (auto& [key, client] : clients_) {
    const auto followers = followers_.find(w.spec.job);
    const bool follows = followers != followers_.end() && followers->second.contains(key);
    if (client.job == w.spec.job || follows) client.peer->notify(number(Method::kWorkerExited), body(update.clone()));
  }
  tell_exit(w, shell_code, cause);
  logs_.close(worker);
  if (w.launched) {
    ended_.push_back({w.spec, update.clone(), w.pid});
    if (ended_.size() > options_.max_ended) ended_.pop_front();
  }
  check_owner();
  check_ended();
}

// ---- the end
// -----------------------------------------------------------------------------------------------------------------------

void Node::check_owner() {
  if (!options_.ends_with_owner || !owner_gone_ || ending_) return;
  for (const auto& [id, w] : workers_) {
    if (!w.launched && !w.inside) return;  // another rank is still here
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
  // After what was reported is on its way.
  killing_ = clock_.after(std::chrono::milliseconds(0), [this] {
    if (options_.on_end) options_.on_end(end_reason_);
  });
}

}  // namespace shoal::scheduler
