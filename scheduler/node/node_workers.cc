// A node's workers: their starts, output and ends.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/cluster/function_worker.h"
#include "scheduler/node/node.h"

namespace shoal::scheduler {

using actors::Launch;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WorkerState;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

// The error for a process's end, with its last lines of stderr: the first cause, which later errors repeat.
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
  // The environment has no token: that lies in the session's folder, readable by this user alone.
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
      // Reported as well, for a head other than the one that asked.
      report_exit(it->second, pid.error().code() == Code::kNotFound ? 127 : 126, pid.error());  // a shell's exit codes
      workers_.erase(it);
      shared->fail(pid.error());
      return check_ended();
    }
    Worker& worker = it->second;
    worker.pid = *pid;
    // A process that hosts actors reports itself when it is ready.
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
      ::kill(pid, signal);  // not launched here: the process alone, not its group
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
    peer.notify(number(Method::kWorkerExited), {e.update.clone(), {}, {}});
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

// Workers that may be ended: no drivers, ranks of jobs or processes that attached by themselves.
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
  // Reads first what the worker sent before its death: others may hold what it passed on. It counts as alive meanwhile, and may lose its
  // connection by that.
  if (Peer* const peer = workers_.at(worker).peer; peer != nullptr) peer->read_arrived();
  const auto node = workers_.extract(worker);
  Worker& w = node.mapped();
  devices_.give_back(worker);
  w.state = WorkerState::kExited;
  log_->info("worker={} pid={} ended code={}", to_string(worker), w.pid, shell_code);
  objects_.worker_gone(worker, cause.message());  // counts what it leaves
  if (w.member >= 0) usage_.leave(w.member);
  metrics_.ended(worker);
  const Bytes update =
      to_bytes(actors::WorkerUpdate{worker, WorkerState::kExited, w.pid, w.endpoint, shell_code, cause, w.spec.job, w.role});
  for (auto& [key, client] : clients_) {
    const auto followers = followers_.find(w.spec.job);
    const bool follows = followers != followers_.end() && followers->second.contains(key);
    if (client.job == w.spec.job || follows) client.peer->notify(number(Method::kWorkerExited), {update.clone(), {}, {}});
  }
  report_exit(w, shell_code, cause);
  logs_.close(worker);
  if (w.launched) {
    ended_.push_back({w.spec, update.clone(), w.pid});
    if (ended_.size() > options_.max_ended) ended_.pop_front();
  }
  check_owner();
  check_ended();
}

}  // namespace shoal::scheduler
