// Starts simulated workers for a real Node, and ends them.
//
// Behaves as scheduler/node/posix_launcher. A process starts after a random delay, and its pid is reported later still, possibly after it
// has attached. A signal before that report is lost. The exit is reported after the pid.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/node/processes/launcher.h"
#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_worker.h"

namespace shoal::simulation {

class SimLauncher final : public scheduler::Launcher {
 public:
  struct Faults {
    std::uint32_t start_fails_per_mille = 0;
    std::uint32_t dies_while_starting_per_mille = 0;
    std::uint32_t ignores_sigterm_per_mille = 0;
    runtime::Duration most_start = std::chrono::milliseconds(400);
  };

  SimLauncher(runtime::SimWorld& world, ProcessTable& processes, std::string host)
      : world_(world), processes_(processes), host_(std::move(host)), clock_(world.clock_of(host_)) {}
  ~SimLauncher() override;

  // ---- for tests ----
  void set_faults(const Faults& faults) { faults_ = faults; }
  // Kills the worker as a SIGKILL from outside would. Returns false if it does not run.
  bool crash(WorkerId worker);
  // Processes that exist, whether or not the node has their pids.
  std::vector<WorkerId> running() const;

  // ---- scheduler::Launcher ----
  void set_events(Events* events) override { events_ = events; }
  // The argv of a program is {"run", MILLISECONDS, EXIT CODE}. It exits with that code after that time; "0" runs until it is signalled.
  void start(const actors::StartWorker& spec, const Env& env, std::function<void(Result<pid_t>)> started) override;
  void drain_output() override {}  // output is reported without delay
  void end_lines(WorkerId) override {}
  void signal(WorkerId worker, int signal) override;
  // does nothing: the only processes that attach without being started by the node are drivers, and tests end those
  void signal_process(pid_t, int) override {}
  std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone) override { return processes_.watch(pid, std::move(gone)); }
  void retire_torch() override {}
  Result<std::uint16_t> free_port() override { return next_port_++; }

 private:
  struct Process {
    pid_t pid = 0;
    bool known = false;  // the pid was reported to the node
    bool stubborn = false;
    std::unique_ptr<SimWorker> worker;  // null for a program, and once it has ended
    std::optional<runtime::ExitStatus> ended;
    runtime::Timer starting, process_report, running, ending;
  };
  void begin(WorkerId id, const actors::StartWorker& spec, const Env& env);
  void end(WorkerId id, runtime::ExitStatus status);
  void reap(WorkerId id);

  runtime::SimWorld& world_;
  ProcessTable& processes_;
  const std::string host_;
  runtime::Clock& clock_;  // the clock of this host
  Faults faults_;
  Events* events_ = nullptr;
  std::map<WorkerId, Process> workers_;
  std::uint16_t next_port_ = 30'000;
};

}  // namespace shoal::simulation
