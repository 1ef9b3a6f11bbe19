// The node's handlers of requests and notices, by sender.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/wire/codec.h"
#include "scheduler/node/logs/log_files.h"
#include "scheduler/node/node.h"

namespace shoal::scheduler {

using actors::Empty;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WithExtras;
using runtime::Message;
using runtime::Peer;
using runtime::Responder;

namespace {
constexpr std::uint64_t kMaxReadBytes = 32u << 20;  // limit of one read of a log
}  // namespace

void Node::on_request(Peer& peer, runtime::Request request, Responder responder) {
  const auto method = static_cast<Method>(request.method);
  const bool from_head = head_.is(peer);
  const bool from_node = peer.identity().role == runtime::Role::kNode;
  Sender sender{peer, from_head ? nullptr : clients_.find(peer.number())};
  const auto answered = [&]() -> Methods::Table::Answer {
    const auto& methods = from_head ? methods_.of_head
                          : methods_.of_nodes.contains(method) && (from_node || !methods_.of_clients.contains(method))
                              ? methods_.of_nodes
                              : methods_.of_clients;
    if (!methods.contains(method)) {
      return fail(unimplemented("a node does not implement method " + std::to_string(number(method)) + (from_head ? " of a head" : "")));
    }
    if (&methods == &methods_.of_nodes) {
      if (!from_node) return fail(invalid_argument("only a node may send this request"));
      if (method != Method::kMeetNode && !sender.client->node) return fail(invalid_argument("send MeetNode first"));
    }
    return methods.answer(method, sender, request.message, responder);
  };
  if (auto answer = answered()) responder.answer(*std::move(answer));
}

void Node::on_notice(Peer& peer, runtime::Request notice) {
  const auto method = static_cast<Method>(notice.method);
  const bool from_head = head_.is(peer);
  if (!methods_.of_clients.contains_notice(method)) {
    if (!methods_.of_head.contains_notice(method)) return log_->warn("unknown notice {}", notice.method);
    if (!from_head) return;
  }
  Sender sender{peer, from_head ? nullptr : clients_.find(peer.number())};
  const auto& methods = methods_.of_head.contains_notice(method) ? methods_.of_head : methods_.of_clients;
  if (!methods.take(method, sender, notice.message) && method == Method::kPutObject) log_->warn("malformed PutObject notice");
}

void Node::answer_head() {
  methods_.of_head.on<Method::kStartWorker>([this](Sender&, const actors::StartWorker& spec, Responder& responder) -> Result<void> {
    workers_.start(spec, environment(spec), std::move(responder));
    return {};
  });
  methods_.of_head.on<Method::kStopWorker>([this](Sender&, const actors::StopWorker& stop) { workers_.stop(stop); });
  methods_.of_head.on<Method::kEndJob>([this](Sender&, const actors::JobRef& ref) {
    workers_.end_job(ref.job);
    objects_.end_job(ref.job);
    reports_.metrics().over(ref.job);
  });
  methods_.of_head.on<Method::kKillHosted>([this](Sender&, const actors::KillHosted& kill) -> Result<void> {
    const Worker* const w = workers_.find(kill.worker);
    if (w == nullptr || w->peer == nullptr) return fail(not_found("no process " + to_string(kill.worker)));
    w->peer->notify(number(Method::kKillInProcess), {to_bytes(kill), {}, {}});
    return {};
  });
  methods_.of_head.on<Method::kFreePort>([this](Sender&, Empty) -> Result<actors::FreePort> {
    SHOAL_TRY(const std::uint16_t port, launcher_.free_port());
    return actors::FreePort{port};
  });
  methods_.of_head.on_notice<Method::kEndNode>([this](Sender&, Empty) { end("the head shuts the cluster down"); });
  methods_.of_head.on_notice<Method::kLeaveDrained>([this](Sender&, Empty) { end("it was drained", actors::node_drained(id_)); });
  methods_.of_head.on_notice<Method::kHeads>([this](Sender&, const actors::Heads& m) { head_.heads_are(m.endpoints); });
  methods_.of_head.on_notice<Method::kNodeGone>(
      [this](Sender&, const actors::NodeGone& m) { objects_.peer_nodes().head_reported_gone(m); });
}

void Node::answer_nodes() {
  methods_.of_nodes.on<Method::kMeetNode>([this](Sender& sender, const actors::MeetNode& meeting) -> Result<void> {
    SHOAL_OK(objects_.met(meeting));
    sender.client->node = meeting.caller;
    return {};
  });
  methods_.of_nodes.on<Method::kCountObjects>(
      [this](Sender& sender, const actors::CountObjects& counts) { objects_.reported(sender.client->node, counts); });
  methods_.of_nodes.on<Method::kCancelResult>([this](Sender&, const actors::CancelResult& cancel, Responder& responder) -> Result<void> {
    cancel_own(cancel, std::move(responder));
    return {};
  });
  methods_.of_nodes.on<Method::kPullObject>(
      [this](Sender& sender, const actors::PullObject& request, Responder& responder) -> Result<void> {
        objects_.pull(request, sender.peer, std::move(responder));
        return {};
      });
}

void Node::answer_clients() {
  methods_.of_clients.on<Method::kAttach>([this](Sender& sender, const actors::Attach& m) { return attach(sender, m); });
  methods_.of_clients.on<Method::kWorkerReady>([this](Sender& sender, const actors::WorkerUpdate& m) -> Result<void> {
    Worker* const w = workers_.find(sender.client->worker);
    if (w == nullptr) return fail(not_found("this process has not attached to the node"));
    workers_.ready(*w, m.endpoint);
    return {};
  });
  methods_.of_clients.on<Method::kLastMetrics>([this](Sender& sender, actors::ReportedMetrics& last) -> Result<void> {
    const Worker* const w = workers_.find(sender.client->worker);
    if (w == nullptr) return fail(not_found("this process has not attached to the node"));
    reports_.metrics().reported(w->spec.worker, {w->spec.job, w->role, w->pid}, std::move(last.metrics));
    return {};
  });
  methods_.of_clients.on<Method::kInspect>([this](Sender&, const actors::Inspect& request, Responder& responder) -> Result<void> {
    actors::NodeReport begun;
    begun.node = id_;
    begun.pid = options_.pid;
    reports_.inspect(std::move(begun), request, std::move(responder));
    return {};
  });
  methods_.of_clients.on<Method::kCancelResult>(
      [this](Sender& sender, const actors::CancelResult& m, Responder& responder) -> Result<void> {
        if (!sender.client->worker) return fail(invalid_argument("attach first: a process without a job has no references"));
        cancel_result(m, std::move(responder));
        return {};
      });
  methods_.of_clients.on<Method::kReadTaskLog>([this](Sender&, const actors::ReadTaskLog& m) {
    const std::size_t bytes = std::min(m.log.tail_bytes, kMaxReadBytes);
    return logs_.book().read(m.log.worker, static_cast<Launcher::Stream>(m.log.stream), bytes, {m.caller, m.number});
  });
  methods_.of_clients.on<Method::kReadLogFile>([this](Sender&, const actors::ReadLogFile& m) -> Result<std::string> {
    const std::string& folder = options_.logs.folder;
    if (m.name.empty()) return fmt::format("{}", fmt::join(log_files(folder), "\n"));
    return read_log_file(folder, m.name, std::min(m.tail_bytes, kMaxReadBytes));
  });
  methods_.of_clients.on<Method::kReadLog>([this](Sender&, const actors::ReadLog& m) {
    return logs_.book().read(m.worker, static_cast<Launcher::Stream>(m.stream), std::min(m.tail_bytes, kMaxReadBytes));
  });
  methods_.of_clients.on<Method::kFollowLogs>(
      [this](Sender& sender, const actors::JobRef& m) { return logs_.follow(sender.peer, m.job, workers_.all()); });
  methods_.of_clients.on<Method::kSyncLogs>([this](Sender&, const std::optional<actors::JobRef>& leaving) {
    launcher_.drain_output();
    if (!leaving) return;
    for (const auto& [id, w] : workers_.all()) {
      if (w.launched() && w.spec.job == leaving->job) launcher_.end_lines(id);
    }
  });
  methods_.of_clients.on<Method::kEndNode>([this](Sender&, Empty) { end("it was asked to"); });
}

void Node::answer_object_clients() {
  methods_.of_clients.on<Method::kOpenArena>([this](Sender& sender, const actors::OpenArena& m) -> Result<WithExtras<actors::OpenedArena>> {
    const NodeClient& client = *sender.client;
    if (!client.worker) return fail(invalid_argument("attach to a job before opening an arena"));
    SHOAL_TRY(auto opened, memory_.open(client.job, m.key, m.bytes, client.worker, m.lasting));
    if (m.member >= 0) SHOAL_OK(memory_.join_membership_page(client.job, m.key, client.worker, static_cast<std::uint32_t>(m.member)));
    WithExtras<actors::OpenedArena> out{{opened.created}, {}, {}};
    out.fds.push_back(std::move(opened.memory));
    return out;
  });
  methods_.of_clients.on<Method::kDropArena>(
      [this](Sender& sender, const actors::ArenaRef& m) { memory_.drop(sender.client->job, m.key, sender.client->worker); });
  methods_.of_clients.on<Method::kGetObject>([this](Sender& sender, const actors::ObjectRef& m, Responder& responder) -> Result<void> {
    objects_.get(m.job ? m.job : sender.client->job, sender.client->worker, m, std::move(responder));
    return {};
  });
  methods_.of_clients.on_notice<Method::kPutObject>([this](Sender& sender, WithExtras<actors::ObjectRef>& m) {
    if (sender.client == nullptr) return log_->warn("malformed PutObject notice");
    Result<Fd> memory = fail(resource_exhausted("the node has no descriptor left for the object"));
    if (m.fds.size() == 1) {
      memory = std::move(m.fds[0]);
    } else if (!m.payload.empty()) {
      memory = fail(runtime::decode_error(m.payload));
    }
    objects_.put(sender.client->job, sender.client->worker, m.body, std::move(memory));
  });
  methods_.of_clients.on_notice<Method::kDropObject>([this](Sender& sender, const actors::ObjectRef& m) {
    if (sender.client != nullptr) objects_.drop(sender.client->job, sender.client->worker, m);
  });
  methods_.of_clients.on_notice<Method::kMakeRoom>([this](Sender& sender, const actors::MakeRoom& m) {
    objects_.make_room(m.bytes);
    clients_.want_room(m.bytes, &sender.peer);
  });
  methods_.of_clients.on_notice<Method::kMoveObject>([this](Sender& sender, WithExtras<actors::ObjectRef>& m) {
    if (sender.client == nullptr || m.fds.size() != 1) return;
    const auto& object = m.body;
    objects_.move(sender.client->job, sender.client->worker, {object.job, object.id, object.home}, std::move(m.fds[0]));
  });
  methods_.of_clients.on_notice<Method::kCountObjects>([this](Sender& sender, const actors::CountObjects& m) {
    if (sender.client != nullptr) objects_.count(sender.client->worker, m);
  });
}

}  // namespace shoal::scheduler
