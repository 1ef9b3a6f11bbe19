#include "scheduler/node/node.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler {

using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;
using runtime::Peer;

namespace {
Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }
}  // namespace

Node::Node(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Launcher& launcher, runtime::Log log, Options options)
    : clock_(clock),
      random_(random),
      network_(network),
      launcher_(launcher),
      log_(std::move(log)),
      options_(std::move(options)),
      id_(new_id()),
      memory_(options_.memory),
      usage_(Objects::kMember, options_.object_store_bytes),
      objects_(
          clock_, network_, memory_, log_, options_.objects, options_.peer_nodes, [this] { return head_.head(); }, object_events()),
      logs_(options_.logs, options_.max_ended),
      workers_(clock_, launcher_, log_, options_.workers, worker_events()),
      reports_(clock_, workers_, memory_, objects_, usage_, options_.measure),
      head_(clock_, network_, log_, options_.head, *this, head_events()),
      clients_(clock_, *this) {
  answer_head();
  answer_nodes();
  answer_clients();
  answer_object_clients();
  objects_.start_as(id_);
}

Node::~Node() {
  // Closes the connections before the members with waiting answers are destroyed. So clients see a broken connection, not failed requests.
  clients_.clear();
}

HeadLink::Events Node::head_events() {
  return {
      .registration =
          [this] {
            return actors::RegisterNode{
                id_, options_.host, options_.pid, listener_->endpoint().to_string(), options_.resources, options_.labels};
          },
      .workers =
          [this] {
            std::vector<actors::WorkerUpdate> out;
            for (const auto& [id, w] : workers_.all()) out.push_back(w.update());
            return out;
          },
      .registered =
          [this] {
            objects_.peer_nodes().head_registered();
            if (options_.events.on_registered) options_.events.on_registered();
          },
      .fenced =
          [this] {
            workers_.kill_launched();  // the head has declared this node's workers dead
            become(new_id());
          },
      .orphaned =
          [this](const std::string& why) {
            if (options_.events.on_orphaned) options_.events.on_orphaned(why);
            end(why);
          },
      .heads_changed =
          [this](const actors::Heads& heads) {
            clients_.each([&](auto, const NodeClient& client) { client.peer->notify(number(Method::kHeads), body(to_bytes(heads))); });
          },
  };
}

Workers::Events Node::worker_events() {
  return {
      .output = [this](const Worker* worker, WorkerId id, Launcher::Stream stream,
                       std::string_view lines) { logs_.write(worker, id, stream, lines); },
      .tail = [this](WorkerId worker) { return logs_.book().tail(worker); },
      .changed = [this](const Worker& worker) { head_.report(worker.update()); },
      .not_started =
          [this](const actors::WorkerUpdate& exit) {
            head_.report_exit(exit);  // repeated to later heads, since the present one may not have stored the exit
            check_ended();
          },
      .ended = [this](const Worker& worker, const actors::WorkerUpdate& exit) { worker_ended(worker, exit); },
  };
}

Objects::Events Node::object_events() {
  return {
      .has_worker = [this](WorkerId worker) { return workers_.contains(worker); },
      .usage_board = [this] { return usage_.board(); },
      .want_room = [this](std::uint64_t bytes) { clients_.want_room(bytes, nullptr); },
      .queued = [this](std::uint64_t connection) { return clients_.queued(connection); },
  };
}

Result<void> Node::start() {
  SHOAL_TRY(listener_, network_.listen(options_.listen, [this](auto connection) { clients_.add(std::move(connection)); }));
  log_->info("node={} listening endpoint={}", to_string(id_), listener_->endpoint().to_string());
  if (options_.owner) {
    ending_.owner_watch = launcher_.watch(*options_.owner, [this] {
      ending_.owner_gone = true;
      check_owner();
    });
  }
  workers_.start_monitors();
  head_.connect();
  return {};
}

NodeId Node::new_id() {
  NodeId out = random_.id<NodeId>();
  if (options_.order) out.value = (std::uint64_t{*options_.order} << 48) | (out.value >> 16) | 1;
  return out;
}

// Takes a new id, and closes the connections of other nodes, which were made to the node with the old id.
void Node::become(NodeId id) {
  id_ = id;
  objects_.start_as(id);
  clients_.close_nodes([this](NodeClients::Number number) {
    logs_.left(number);
    objects_.parts().closed(number);
  });
}

void Node::on_drained(Peer& peer) { objects_.parts().drained(peer.number()); }

void Node::on_closed(Peer& peer, const Error& why) {
  if (head_.is(peer)) return head_.closed(why);
  const NodeClient owned = clients_.take(peer.number());  // the connection, which has called this function, lives until it returns
  // A closed connection is not a death, which the pidfd reports. A forked child may hold the socket open, or user code may have closed it.
  if (Worker* const w = workers_.find(owned.worker); w != nullptr && w->peer == &peer) {
    reports_.metrics().left(owned.worker);
    workers_.disconnected(*w, memory_.ended(w->spec.job));
  }
  logs_.left(peer.number());
  objects_.parts().closed(peer.number());
}

// ---- workers -----------------------------------------------------------------------------------------------------------------------

// The variables by which a worker finds its cluster. They do not have the token, which is in the session folder, readable by this user
// alone.
Launcher::Env Node::environment(const actors::StartWorker& spec) const {
  Launcher::Env out = {{"SHOAL_SESSION", options_.session},
                       {"SHOAL_NODE", listener_->endpoint().to_string()},
                       {"SHOAL_ADDRESS", fmt::format("{}", fmt::join(head_.endpoints(), ","))},
                       {"SHOAL_WORKER_ID", to_string(spec.worker)},
                       {"SHOAL_JOB_ID", to_string(spec.job)}};
  const auto& given = spec.launch.env;
  for (const auto& variable : options_.variables) {
    if (std::ranges::none_of(given, [&](const auto& e) { return e.first == variable.first; })) out.push_back(variable);
  }
  return out;
}

Result<actors::WithExtras<actors::Attached>> Node::attach(const Sender& sender, const actors::Attach& m) {
  Peer& peer = sender.peer;
  NodeClient& client = *sender.client;
  using Reply = actors::WithExtras<actors::Attached>;
  const pid_t pid = peer.identity().pid;
  const std::string heads = fmt::format("{}", fmt::join(head_.endpoints(), ","));
  if (client.worker) return fail(invalid_argument("this connection has attached process " + to_string(client.worker) + " already"));
  Worker* w = workers_.find(m.worker);
  // A process that a worker has started (a script run by a shell) becomes a worker of its own, with a death of its own. A worker may attach
  // before the launcher reports its pid.
  if (w == nullptr || (w->launched() && w->pid != 0 && peer.identity().local && w->pid != pid)) {
    if (m.worker && w == nullptr) return fail(not_found("no worker " + to_string(m.worker) + " on this node"));
    if (!m.worker && !m.job) {  // a command that only inspects the node
      client.job = {};
      return Reply{{id_, {}, heads, options_.session, options_.host, {}}, {}, {}};
    }
    const JobId job = m.worker ? w->spec.job : m.job;
    SHOAL_OK(workers_.may_adopt(pid));
    const auto origin = m.worker ? Worker::Origin::kInside : Worker::Origin::kAttached;
    w = &workers_.adopt(random_.id<WorkerId>(), job, pid, origin, m.role);
  }
  const WorkerId id = w->spec.worker;
  w->peer = &peer;
  client.worker = id;
  client.job = w->spec.job;
  Reply out{{id_, client.job, heads, options_.session, options_.host, id, -1, options_.objects.spill_folder}, {}, {}};
  auto shared = usage_.share(w->member);
  if (!shared) log_->warn("no usage board: {}", shared.error().message());
  if (shared && *shared) {
    out.body.member = w->member;
    out.fds.push_back(**std::move(shared));
  }
  return out;
}

// Succeeds if the object's owner or home is gone, since then there is no call to cancel.
void Node::cancel_result(const actors::CancelResult& cancel, runtime::Responder responder) {
  const NodeId home = cancel.object.home;
  if (!home || home == id_) return cancel_own(cancel, std::move(responder));
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  objects_.peer_nodes().call(home, Method::kCancelResult, to_bytes(cancel), [shared](Result<Message> r) {
    if (!r && r.error().reason() == "OwnerDied") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

void Node::cancel_own(const actors::CancelResult& cancel, runtime::Responder responder) {
  const Worker* const owner = workers_.find(cancel.owner);
  if (owner == nullptr || owner->peer == nullptr) return responder.reply(Message());
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  owner->peer->call(number(Method::kCancelResult), body(to_bytes(cancel)), Peer::kNoTimeout, [shared](Result<Message> r) {
    if (!r && r.error().reason() == "Disconnected") return shared->reply(Message());
    shared->answer(std::move(r));
  });
}

void Node::worker_ended(const Worker& w, const actors::WorkerUpdate& exit) {
  // First: the node counts the bytes of the worker's objects as its own before the worker's place on the usage board is cleared.
  objects_.worker_gone(exit.worker, exit.cause->message());
  if (w.member >= 0) usage_.leave(w.member);
  reports_.metrics().ended(exit.worker);
  const Bytes notice = to_bytes(exit);
  clients_.each([&](NodeClients::Number key, const NodeClient& client) {
    if (client.job != exit.job && !logs_.follows(key, exit.job)) return;
    client.peer->notify(number(Method::kWorkerExited), {notice.clone(), {}, {}});
  });
  head_.report_exit(exit);
  logs_.ended(w, exit);
  check_owner();
  check_ended();
}

// ---- the end -----------------------------------------------------------------------------------------------------------------------

void Node::check_owner() {
  if (!ending_.owner_gone || ending_.why || workers_.any(Worker::Origin::kAttached)) return;  // one of several ranks may still run
  end("the processes it was started for are gone");
}

void Node::end(const std::string& why, std::optional<Error> of_workers) {
  if (ending_.why) return;
  ending_.why = why;
  head_.stop();
  if (options_.events.on_ending) options_.events.on_ending();
  log_->info("node={} ending: {}", to_string(id_), why);
  workers_.end(std::move(of_workers));
  check_ended();
}

void Node::check_ended() {
  if (!ending_.why || workers_.any(Worker::Origin::kLaunched)) return;
  // Deferred by a turn of the loop, so that the last reports are sent before.
  ending_.over = clock_.after(std::chrono::milliseconds(0), [this] {
    if (options_.events.on_end) options_.events.on_end(*ending_.why);
  });
}

}  // namespace shoal::scheduler
