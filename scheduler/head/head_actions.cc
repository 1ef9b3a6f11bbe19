// The head performs what the cluster state decided, once it is stored.
#include <utility>

#include "scheduler/head/head.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;

namespace {

constexpr const char* kNotReached = "NotReached";  // reason of requests that did not reach their node

template <class... Handlers>
struct ByKind : Handlers... {
  using Handlers::operator()...;
};

}  // namespace

void Head::perform(Action action) {
  log_->debug("action {}", to_string(action));
  std::visit(ByKind{[this](const StartWorkerOn& a) { start_worker(a); },
                    [this](const StopWorkerOn& a) { to_node(a.node, Method::kStopWorker, to_bytes(a.message)); },
                    [this](const EndJobOn& a) { to_node(a.node, Method::kEndJob, to_bytes(actors::JobRef{a.job})); },
                    [this](const KillHostedOn& a) { to_node(a.node, Method::kKillHosted, to_bytes(a.message)); },
                    [this](const Disconnect& a) { disconnect(a); },
                    [this](const EndNodeOn& a) {
                      log_->info("node={} leaves", to_string(a.node));
                      if (const auto it = nodes_.find(a.node); it != nodes_.end()) it->second->notify(number(Method::kEndNode), {});
                    },
                    [this](const FindPortOn& a) { find_port(a); },
                    [this](const NotifyActor& a) {
                      watchers_.changed(a.row);
                      if (a.row.state == actors::ActorState::kDead) {
                        log_->info("actor={} dead cause='{}'", to_string(a.row.id), a.row.cause ? a.row.cause->message() : "");
                      } else {
                        log_->info("actor={} {} worker={}", to_string(a.row.id), actors::to_string(a.row.state), to_string(a.row.worker));
                      }
                    },
                    [this](const NotifyJob& a) {
                      log_->info("job={} {} exit={}", to_string(a.row.id), actors::to_string(a.row.state), a.row.exit_code);
                      watchers_.changed(a.row);
                      if (a.row.ended_unix_ms != 0) driver_watches_.erase(a.row.id);
                    },
                    [this](const NotifyGroup& a) { watchers_.changed(a.row); }, [this](const AnswerHosted& a) { answer_hosted(a); },
                    [this](const Warn& a) {
                      log_->warn("job={} {}", to_string(a.job), a.text);
                      watchers_.warn(a.job, a.text);
                    },
                    [this](const ForgetJob& a) { watchers_.forget(a.job); }},
             action);
}

void Head::start_worker(const StartWorkerOn& start) {
  const WorkerId worker = start.message.worker;
  watchers_.starts_on(start.message.job, start.node, state_.node(start.node));
  to_node(start.node, Method::kStartWorker, to_bytes(start.message), [this, worker](Result<Message> r) {
    if (r) return;
    now();
    if (r.error().reason() == kNotReached) {
      log_->info("worker={} node not reached: {}", to_string(worker), r.error().message());
      state_.step(WorkerNotReached{worker, r.error()});
      return settle();
    }
    const int code = r.error().code() == Code::kNotFound ? 127 : 126;  // a shell's exit codes
    log_->warn("worker={} not started: {}", to_string(worker), r.error().message());
    state_.step(WorkerNotStarted{worker, code, r.error()});
    settle();
  });
}

// The connection may have outlived a partition; without its end the node would not learn that it was given up.
void Head::disconnect(const Disconnect& given_up) {
  watchers_.gone(given_up.node, given_up.cause);
  const auto it = nodes_.find(given_up.node);
  if (it == nodes_.end()) return;
  const std::uint64_t client = it->second->number();
  nodes_.erase(it);
  forget(client);
}

void Head::find_port(const FindPortOn& find) {
  to_node(find.node, Method::kFreePort, {}, [this, job = find.job](Result<Message> r) {
    now();
    if (!r && r.error().reason() == kNotReached) {
      state_.step(PortNotAsked{job});
    } else if (!r) {
      state_.step(PortFound{job, fail(r.error())});
    } else if (const auto m = from_bytes<actors::FreePort>(r->body); m) {
      state_.step(PortFound{job, m->port});
    } else {
      state_.step(PortFound{job, fail(m.error())});
    }
    settle();
  });
}

void Head::answer_hosted(const AnswerHosted& answer) {
  auto waiting = hosting_.extract(answer.actor);
  if (waiting.empty()) return;
  if (answer.result) {
    waiting.mapped().reply({to_bytes(*answer.result), {}, {}});
  } else {
    waiting.mapped().fail(answer.result.error());
  }
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
  it->second->call(number(method), {std::move(bytes), {}, {}},
                   method == Method::kStartWorker ? options_.start_timeout : options_.call_timeout,
                   [this, alive = alive_, node, number = it->second->number(), callback = std::move(callback)](Result<Message> r) {
                     if (!*alive) return;
                     const auto now = nodes_.find(node);
                     const bool lost = now == nodes_.end() || now->second->number() != number || !now->second->connected();
                     if (!r && lost) return callback(fail(Error(r.error()).with_reason(kNotReached)));
                     callback(std::move(r));
                   });
}

}  // namespace shoal::scheduler
