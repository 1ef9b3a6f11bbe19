#include "scheduler/node/processes/workers.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/protocol/cluster/function_worker.h"

namespace shoal::scheduler {

using actors::Launch;
using actors::WorkerState;

namespace {

constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

// The error for a process's end, with the last lines of its stderr. These lines are the cause, which errors of other processes then repeat.
Error death(std::string text, const std::string& tail, const std::string& reason, const std::string& hint) {
  if (!tail.empty())
    text += "\nlast lines of its stderr:\n  " + [&] {
      std::string indented;
      for (const char c : tail) indented += c == '\n' ? std::string("\n  ") : std::string(1, c);
      return indented;
    }();
  return unavailable(std::move(text)).with_reason(reason).with_hint(hint);
}

std::string role_of(const actors::StartWorker& spec) {
  const bool is_rank = spec.rank >= 0 && spec.label.starts_with("rank");
  return is_rank || spec.label == "driver" || actors::is_function_class(spec.label) ? spec.label : "actor " + spec.label;
}

Error stopped_too_long(const Worker& w, runtime::Duration limit) {
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
  return unavailable(fmt::format("{} (pid {}) was ended by its node, because a signal (SIGSTOP) had stopped it for {} s", w.role, w.pid, s))
      .with_reason("WorkerStopped")
      .with_hint(
          "whoever stops a process has to continue it in time (kill -CONT PID); SHOAL_STOPPED_WORKER_LIMIT sets the seconds, 0 for "
          "ever");
}

// The code with which a shell reports a command that it cannot run.
std::int32_t shell_code(const Error& why) { return why.code() == Code::kNotFound ? 127 : 126; }

}  // namespace

actors::WorkerUpdate Worker::update(std::int32_t shell_code, const std::optional<Error>& cause) const {
  const bool stands = stopped && state != WorkerState::kExited;
  return {spec.worker, stands ? WorkerState::kStopped : state, pid, endpoint, shell_code, cause, spec.job, role};
}

Workers::Workers(runtime::Clock& clock, Launcher& launcher, runtime::Log log, Options options, Events events)
    : clock_(clock),
      launcher_(launcher),
      log_(std::move(log)),
      options_(std::move(options)),
      events_(std::move(events)),
      devices_(options_.gpus),
      monitor_(
          clock_, log_, options_.monitor, [this] { return memory_users(); },
          [this](WorkerId worker) { launcher_.signal(worker, SIGKILL); }),
      stopped_(options_.stopped) {
  launcher_.set_events(this);
}

Workers::~Workers() {
  *alive_ = false;
  launcher_.set_events(nullptr);
}

Worker* Workers::find(WorkerId worker) {
  const auto it = workers_.find(worker);
  return it == workers_.end() ? nullptr : &it->second;
}

bool Workers::any(Worker::Origin origin) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) { return entry.second.origin == origin; });
}

// ---- starts ------------------------------------------------------------------------------------------------------------------------

void Workers::start(const actors::StartWorker& spec, Launcher::Env env, runtime::Responder responder) {
  if (ending_) return responder.fail(unavailable("the node is ending"));
  if (workers_.contains(spec.worker)) return responder.fail(invalid_argument("worker " + to_string(spec.worker) + " exists already"));
  Worker& w = workers_[spec.worker];
  w.spec = spec;
  w.order = next_order_++;
  w.role = role_of(spec);
  if (spec.launch.torch) torch_jobs_.insert(spec.job);
  const bool chosen_by_user =
      std::any_of(spec.launch.env.begin(), spec.launch.env.end(), [](const auto& e) { return e.first == kVisibleDevices; });
  if (spec.gpu_units >= 0 && !devices_.empty()) {
    const auto devices = devices_.take(spec.worker, spec.gpu_units);
    if (!chosen_by_user) env.emplace_back(kVisibleDevices, fmt::format("{}", fmt::join(devices, ",")));
  }
  auto shared = std::make_shared<runtime::Responder>(std::move(responder));
  launcher_.start(spec, env, [this, alive = alive_, id = spec.worker, shared](Result<pid_t> pid) {
    if (*alive) started(id, std::move(pid), *shared);
  });
}

void Workers::started(WorkerId id, Result<pid_t> pid, runtime::Responder& responder) {
  Worker* const w = find(id);
  if (w == nullptr) return responder.fail(unavailable("worker " + to_string(id) + " is gone"));
  if (!pid) return not_started(*w, pid.error(), responder);
  w->pid = *pid;
  // Other kinds of processes host actors, and report by themselves when they are ready.
  const auto kind = w->spec.launch.kind;
  if (kind == Launch::Kind::kProgram || kind == Launch::Kind::kPythonScript) w->state = WorkerState::kRunning;
  log_->info("worker={} started pid={} label='{}' job={}", to_string(id), *pid, w->spec.label, to_string(w->spec.job));
  events_.changed(*w);
  responder.reply({});
  if (w->fate == Worker::Fate::kKilled || ending_) launcher_.signal(id, SIGKILL);
}

// The launcher has lost a worker. If the worker has attached, it runs. Then the node kills it, and answers only after its end, because the
// head then gives its devices to others.
void Workers::not_started(Worker& w, const Error& why, runtime::Responder& responder) {
  const WorkerId id = w.spec.worker;
  log_->warn("worker={} not started: {}", to_string(id), why.message());
  if (w.peer != nullptr && w.peer->identity().local) {
    w.pid = w.peer->identity().pid;
    w.fate = Worker::Fate::kKilled;
    const auto answer = std::make_shared<runtime::Responder>(std::move(responder));
    w.watch = launcher_.watch(w.pid, [this, id, why, answer] {
      const auto kept = answer;  // keeps `answer`, since gone() destroys this callback
      const Error cause = why;
      gone(id, shell_code(cause), cause);
      kept->fail(cause);
    });
    launcher_.signal_process(w.pid, SIGKILL);
    return;
  }
  devices_.give_back(id);
  w.state = WorkerState::kExited;
  const auto exit = w.update(shell_code(why), why);
  workers_.erase(id);
  events_.not_started(exit);
  responder.fail(why);
}

Result<void> Workers::may_adopt(pid_t pid) const {
  const auto attached =
      std::ranges::count_if(workers_, [pid](const auto& entry) { return !entry.second.launched() && entry.second.pid == pid; });
  if (static_cast<std::size_t>(attached) < options_.max_attached) return {};
  return fail(resource_exhausted(fmt::format("process {} has {} sessions at this node, which is the most for one process", pid, attached))
                  .with_reason("TooManyAttached")
                  .with_hint("close sessions, or start another process"));
}

Worker& Workers::adopt(WorkerId id, JobId job, pid_t pid, Worker::Origin origin, const std::string& role) {
  Worker& w = workers_[id];
  w.spec.worker = id;
  w.spec.job = job;
  w.origin = origin;
  w.pid = pid;
  w.role = role.empty() ? "process" : role;
  w.state = WorkerState::kRunning;
  w.watch = launcher_.watch(pid, [this, id] {
    const Worker& ended = workers_.at(id);
    gone(id, 128 + SIGKILL, unavailable(fmt::format("{} (pid {}) ended", ended.role, ended.pid)).with_reason("WorkerDied"));
  });
  log_->info("worker={} attached pid={} role={} job={}", to_string(id), pid, w.role, to_string(job));
  events_.changed(w);
  return w;
}

void Workers::ready(Worker& w, const std::string& endpoint) {
  w.endpoint = endpoint;
  w.state = WorkerState::kRunning;
  events_.changed(w);
}

void Workers::disconnected(Worker& w, bool job_ended) {
  w.peer = nullptr;
  if (job_ended && !w.launched()) end_session(w);
}

// ---- ends --------------------------------------------------------------------------------------------------------------------------

// The group of a process gets the signal as well, if this node has launched the process.
void Workers::send_signal(const Worker& w, int signal) {
  if (w.launched()) {
    launcher_.signal(w.spec.worker, signal);
  } else {
    launcher_.signal_process(w.pid, signal);
  }
}

void Workers::stop(const actors::StopWorker& stop) {
  Worker* const w = find(stop.worker);
  if (w == nullptr) return;
  log_->info("worker={} signal={}", to_string(stop.worker), stop.signal);
  w->fate = w->pid == 0 ? Worker::Fate::kKilled : Worker::Fate::kStops;
  send_signal(*w, stop.signal);
  if (stop.signal == SIGKILL) return;
  w->kill = clock_.after(std::chrono::milliseconds(stop.grace_ms), [this, id = stop.worker] { send_signal(workers_.at(id), SIGKILL); });
}

void Workers::kill_launched(std::optional<JobId> job) {
  for (auto& [id, w] : workers_) {
    if (!w.launched() || (job && w.spec.job != *job)) continue;
    w.fate = Worker::Fate::kKilled;
    launcher_.signal(id, SIGKILL);
  }
}

void Workers::end_job(JobId job) {
  kill_launched(job);
  std::vector<WorkerId> left;
  for (const auto& [id, w] : workers_) {
    if (!w.launched() && w.spec.job == job && w.peer == nullptr) left.push_back(id);
  }
  for (const WorkerId id : left) end_session(workers_.at(id));
  if (torch_jobs_.erase(job) == 0 || !torch_jobs_.empty()) return;
  retiring_ = clock_.after(options_.torch_idle, [this] {
    if (torch_jobs_.empty()) launcher_.retire_torch();
  });
}

void Workers::end(std::optional<Error> why) {
  ending_ = true;
  end_cause_ = std::move(why);
  for (const auto& [id, w] : workers_) launcher_.signal(id, SIGTERM);
  killing_ = clock_.after(options_.stop_grace, [this] {
    for (const auto& [id, w] : workers_) launcher_.signal(id, SIGKILL);
  });
}

void Workers::output(WorkerId worker, Launcher::Stream stream, std::string_view lines) {
  events_.output(find(worker), worker, stream, lines);
}

void Workers::exited(WorkerId worker, runtime::ExitStatus status) {
  const Worker* const w = find(worker);
  if (w == nullptr) return;
  const auto memory = monitor_.cause_of_end(worker, w->role, w->pid, status, w->fate != Worker::Fate::kRuns || ending_);
  const std::string tail = events_.tail(worker);
  if (w->stopped_too_long) return gone(worker, status.shell_code(), stopped_too_long(*w, options_.stopped.limit));
  if (end_cause_) return gone(worker, status.shell_code(), *end_cause_);
  gone(worker, status.shell_code(),
       memory ? death(memory->message(), tail, memory->reason(), memory->hint())
              : death(fmt::format("{} (pid {}) {}", w->role, w->pid, status.to_string()), tail, "WorkerDied", ""));
}

void Workers::gone(WorkerId worker, std::int32_t shell_code, const Error& cause) {
  // First reads what the worker sent before its death, since other processes may hold references that it passed on. The worker counts as
  // alive meanwhile. Its connection may end during this.
  if (runtime::Peer* const peer = workers_.at(worker).peer; peer != nullptr) peer->read_arrived();
  const auto node = workers_.extract(worker);
  if (node.empty()) return;  // the worker's session has ended with its connection
  Worker& w = node.mapped();
  devices_.give_back(worker);
  stopped_.ended(worker);
  w.state = WorkerState::kExited;
  log_->info("worker={} pid={} ended code={}", to_string(worker), w.pid, shell_code);
  events_.ended(w, w.update(shell_code, cause));
}

void Workers::end_session(const Worker& w) {
  gone(w.spec.worker, 0, cancelled(fmt::format("{} (pid {}) has left the cluster", w.role, w.pid)).with_reason("JobEnded"));
}

// ---- looks at the host -------------------------------------------------------------------------------------------------------------

void Workers::start_monitors() {
  monitor_.start();
  if (options_.find_stopped) check_for_stopped();
}

void Workers::check_for_stopped() {
  std::vector<std::pair<WorkerId, pid_t>> seen;
  std::vector<pid_t> pids;
  for (const auto& [id, w] : workers_) {
    if (w.pid <= 0) continue;
    seen.emplace_back(id, w.pid);
    pids.push_back(w.pid);
  }
  options_.find_stopped(std::move(pids), [this, alive = alive_, seen = std::move(seen)](const std::set<pid_t>& stopped) {
    if (*alive) found_stopped(seen, stopped);
  });
}

void Workers::found_stopped(const std::vector<std::pair<WorkerId, pid_t>>& seen, const std::set<pid_t>& stopped) {
  for (const auto& [id, pid] : seen) {
    Worker* const w = find(id);
    if (w != nullptr && w->pid == pid) found(*w, stopped_.check(id, stopped.contains(pid)));
  }
  looking_for_stopped_ = clock_.after(options_.stopped.interval, [this] { check_for_stopped(); });
}

// Processes that attached by themselves are only reported: a shell may have stopped them.
void Workers::found(Worker& w, StoppedWorkers::Finding finding) {
  switch (finding) {
    case StoppedWorkers::Finding::kNone:
      return;
    case StoppedWorkers::Finding::kStopped:
      log_->warn("worker={} pid={} is stopped by a signal", to_string(w.spec.worker), w.pid);
      w.stopped = true;
      return events_.changed(w);
    case StoppedWorkers::Finding::kContinues:
      log_->info("worker={} pid={} continues", to_string(w.spec.worker), w.pid);
      w.stopped = false;
      return events_.changed(w);
    case StoppedWorkers::Finding::kTooLong:
      if (!w.launched()) return;
      log_->warn("worker={} pid={} was stopped for too long: killed", to_string(w.spec.worker), w.pid);
      w.stopped_too_long = true;
      return launcher_.signal(w.spec.worker, SIGKILL);
  }
}

// The workers that the memory monitor may kill. Drivers, ranks of jobs and processes that attached by themselves are not among them.
std::vector<MemoryUser> Workers::memory_users() const {
  std::vector<MemoryUser> out;
  for (const auto& [id, w] : workers_) {
    const bool hosts = w.spec.launch.kind == Launch::Kind::kPythonWorker || w.spec.launch.kind == Launch::Kind::kNativeWorker;
    if (!w.launched() || !hosts || w.pid == 0 || w.fate != Worker::Fate::kRuns) continue;
    out.push_back({id, w.role, w.pid, w.spec.job, w.spec.run_again, w.order, 0});
  }
  return out;
}

}  // namespace shoal::scheduler
