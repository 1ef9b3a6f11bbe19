#include "tests/simulation/sim_launcher.h"

#include <csignal>

namespace shoal::simulation {

using namespace std::chrono_literals;
using actors::Launch;
using runtime::between;
using runtime::happens;

SimLauncher::~SimLauncher() {
  for (auto& [id, p] : workers_) {
    if (p.worker) p.worker->crash();
  }
}

void SimLauncher::start(const actors::StartWorker& spec, const Env& env, std::function<void(Result<pid_t>)> started) {
  auto& random = world_.random();
  Process& p = workers_[spec.worker];
  const auto takes = between(random, 1ms, faults_.most_start);
  if (happens(random, faults_.start_fails_per_mille)) {
    p.process_report = clock_.after(takes, [this, id = spec.worker, started = std::move(started)] {
      const auto gone = workers_.extract(id);
      started(fail(resource_exhausted("fork: no more processes")));
    });
    return;
  }
  p.stubborn = happens(random, faults_.ignores_sigterm_per_mille);
  p.starting = clock_.after(takes, [this, spec, env] { begin(spec.worker, spec, env); });
  p.process_report = clock_.after(takes + between(random, 0s, 20ms), [this, id = spec.worker, started = std::move(started)] {
    auto& reported = workers_.at(id);
    reported.known = true;
    if (reported.ended) reap(id);
    started(reported.pid);
  });
}

void SimLauncher::begin(WorkerId id, const actors::StartWorker& spec, const Env& env) {
  Process& p = workers_.at(id);
  p.pid = processes_.start();
  if (spec.launch.kind == Launch::Kind::kProgram) {
    const long ms = std::stol(spec.launch.argv.at(1));
    const int code = std::stoi(spec.launch.argv.at(2));
    if (ms > 0) p.running = clock_.after(std::chrono::milliseconds(ms), [this, id, code] { end(id, {.code = code}); });
    return;
  }
  p.worker = std::make_unique<SimWorker>(world_, host_, p.pid, env, [this, id](runtime::ExitStatus status) { end(id, status); });
  if (happens(world_.random(), faults_.dies_while_starting_per_mille)) {
    p.running = clock_.after(between(world_.random(), 0s, 15ms), [this, id] { end(id, {.signal = SIGSEGV}); });
  }
}

// The worker itself may call this: it is destroyed a moment later.
void SimLauncher::end(WorkerId id, runtime::ExitStatus status) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.ended) return;
  Process& p = it->second;
  p.ended = status;
  if (p.worker) p.worker->crash();
  processes_.ended(p.pid);
  if (p.known) reap(id);
}

void SimLauncher::reap(WorkerId id) {
  workers_.at(id).ending = clock_.after(between(world_.random(), 10us, 3ms), [this, id] {
    const auto gone = workers_.extract(id);
    if (events_ == nullptr) return;
    if (gone.mapped().ended->signal != 0) events_->output(id, Stream::kErr, "Fatal: the end is near\n");
    events_->exited(id, *gone.mapped().ended);
  });
}

bool SimLauncher::crash(WorkerId id) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.pid == 0 || it->second.ended) return false;
  end(id, {.signal = SIGKILL});
  return true;
}

void SimLauncher::signal(WorkerId id, int signal) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || !it->second.known || it->second.ended) return;
  if (signal != SIGKILL && it->second.stubborn) return;
  it->second.running =
      clock_.after(between(world_.random(), 0s, signal == SIGKILL ? 1ms : 200ms), [this, id, signal] { end(id, {.signal = signal}); });
}

std::vector<WorkerId> SimLauncher::running() const {
  std::vector<WorkerId> out;
  for (const auto& [id, p] : workers_) {
    if (!p.ended) out.push_back(id);
  }
  return out;
}

}  // namespace shoal::simulation
