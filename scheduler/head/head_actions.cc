// The head's part that performs the actions of the cluster state, once the decisions behind them are stored.
#include <utility>

#include "scheduler/head/head.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::to_bytes;
using runtime::Message;

namespace {

template <class... Handlers>
struct ByKind : Handlers... {
  using Handlers::operator()...;
};

}  // namespace

void Head::perform(const Action& action) {
  log_->debug("action {}", to_string(action));
  std::visit(ByKind{[this](const StartWorkerOn& a) { start_worker(a); },
                    [this](const StopWorkerOn& a) { links_.call(a.node, Method::kStopWorker, to_bytes(a.message)); },
                    [this](const EndJobOn& a) { links_.call(a.node, Method::kEndJob, to_bytes(actors::JobRef{a.job})); },
                    [this](const KillHostedOn& a) { links_.call(a.node, Method::kKillHosted, to_bytes(a.message)); },
                    [this](const Disconnect& a) { disconnect(a); },
                    [this](const EndNodeOn& a) {
                      log_->info("node={} leaves", to_string(a.node));
                      links_.notify(a.node, Method::kLeaveDrained);
                      links_.notify(a.node, Method::kEndNode);  // for a node of an earlier version, which ignores the first notice
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
  links_.call(start.node, Method::kStartWorker, to_bytes(start.message), [this, worker](const Result<Message>& r) {
    if (r) return;
    if (r.error().reason() == NodeLinks::kNotReached) {
      log_->info("worker={} node not reached: {}", to_string(worker), r.error().message());
      return happened(WorkerNotReached{worker, r.error()});
    }
    const int code = r.error().code() == Code::kNotFound ? 127 : 126;  // the codes with which a shell reports a command that it cannot run
    log_->warn("worker={} not started: {}", to_string(worker), r.error().message());
    happened(WorkerNotStarted{worker, code, r.error()});
  });
}

// Closes the connection of a node that was given up. The connection may have outlived a partition, and its end shows the node what
// happened.
void Head::disconnect(const Disconnect& given_up) {
  watchers_.gone(given_up.node, given_up.cause);
  if (const auto client = links_.drop(given_up.node)) forget(*client);
}

void Head::find_port(const FindPortOn& find) {
  links_.call(find.node, Method::kFreePort, {}, [this, job = find.job](const Result<Message>& r) {
    if (!r && r.error().reason() == NodeLinks::kNotReached) return happened(PortNotRequested{job});
    if (!r) return happened(PortFound{job, fail(r.error())});
    const auto m = from_bytes<actors::FreePort>(r->body);
    happened(PortFound{job, m ? Result<std::uint16_t>(m->port) : fail(m.error())});
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

}  // namespace shoal::scheduler
