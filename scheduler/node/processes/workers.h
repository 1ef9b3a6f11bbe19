// The processes of a node's host, both those that the node launches and those that attach to it: their starts, stops and ends.
//
// A worker is in the table from the request to start it, or from its attachment. It is removed when the launcher, or a watch on its pid,
// reports its end. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/node_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/node/processes/devices.h"
#include "scheduler/node/processes/launcher.h"
#include "scheduler/node/processes/memory_monitor.h"
#include "scheduler/node/processes/stopped_workers.h"

namespace shoal::scheduler {

struct Worker {
  enum class Origin : std::uint8_t {
    kLaunched,  // this node has launched it
    kInside,    // started by a launched worker; the node does not wait for its end
    kAttached,  // attached by itself, as a driver or a rank under torchrun does
  };
  enum class Fate : std::uint8_t {
    kRuns,
    kStops,   // its end was requested by a signal
    kKilled,  // its end was requested; it gets SIGKILL as soon as it has a pid
  };

  actors::StartWorker spec;
  Origin origin = Origin::kLaunched;
  Fate fate = Fate::kRuns;
  std::uint64_t order = 0;  // number of its start, larger for later ones
  pid_t pid = 0;
  actors::WorkerState state = actors::WorkerState::kStarting;  // never kStopped: that is in `stopped`
  bool stopped = false;                                        // a signal has stopped it; it is reported as kStopped
  std::string endpoint = {};
  std::string role = {};
  runtime::Peer* peer = nullptr;
  std::int32_t member = -1;       // its place on the usage board; -1: none
  std::shared_ptr<void> watch;    // watches its pid, if the launcher does not have the process
  runtime::Timer kill;            // sends SIGKILL when the time after a first signal is over
  bool stopped_too_long = false;  // the node has ended it because it was stopped for too long

  bool launched() const { return origin == Origin::kLaunched; }
  actors::WorkerUpdate update(std::int32_t shell_code = 0, const std::optional<Error>& cause = {}) const;
};

class Workers final : private Launcher::Events {
 public:
  struct Options {
    std::vector<std::string> gpus;  // devices for CUDA_VISIBLE_DEVICES; none: workers see all that the node sees
    MemoryMonitor::Options monitor;
    // The sessions that one process may have: each takes a descriptor, and a row at the head. A session has ended when its job has, and its
    // connection is closed.
    std::size_t max_attached = 1000;
    StoppedWorkers::Options stopped;
    // Called on the loop, at once or later, with those of the processes that a signal has stopped.
    using FoundStopped = std::function<void(const std::set<pid_t>& stopped)>;
    // Reads /proc for each process; empty: no checks for stopped workers.
    std::function<void(std::vector<pid_t>, FoundStopped)> find_stopped;
    // How long a zygote that has imported torch stays without a job: the next job then need not wait for the import.
    runtime::Duration torch_idle = std::chrono::seconds(60);
    runtime::Duration stop_grace = std::chrono::seconds(2);  // when the node ends: time between SIGTERM and SIGKILL
  };
  struct Events {
    // Called with lines of a worker. `worker` is null if it has left the table.
    std::function<void(const Worker* worker, WorkerId id, Launcher::Stream stream, std::string_view lines)> output;
    std::function<std::string(WorkerId worker)> tail;  // returns the last lines of a worker's stderr
    std::function<void(const Worker& worker)> changed;
    // Called when a worker has left the table, because it was not started.
    std::function<void(const actors::WorkerUpdate& exit)> not_started;
    // Called when a worker has left the table, because it has ended.
    std::function<void(const Worker& worker, const actors::WorkerUpdate& exit)> ended;
  };
  Workers(runtime::Clock& clock, Launcher& launcher, runtime::Log log, Options options, Events events);
  ~Workers();

  // Starts to measure the host's memory, and to look for stopped workers.
  void start_monitors();

  const std::map<WorkerId, Worker>& all() const { return workers_; }
  bool contains(WorkerId worker) const { return workers_.contains(worker); }
  Worker* find(WorkerId worker);
  bool any(Worker::Origin origin) const;

  // Starts a worker, and answers once it runs or has failed. `env` is added to the environment in `spec`.
  void start(const actors::StartWorker& spec, Launcher::Env env, runtime::Responder responder);
  // Returns ResourceExhausted if a process has too many sessions (Options::max_attached).
  Result<void> may_adopt(pid_t pid) const;
  // Adds a process that attached, and that this node has not launched.
  Worker& adopt(WorkerId id, JobId job, pid_t pid, Worker::Origin origin, const std::string& role);
  void ready(Worker& worker, const std::string& endpoint);
  // The worker's connection has closed. `job_ended`: the session of a process that attached ends with this, though the process lives.
  void disconnected(Worker& worker, bool job_ended);
  void stop(const actors::StopWorker& stop);
  // Kills the workers that this node has launched; with a `job`, only those of that job.
  void kill_launched(std::optional<JobId> job = {});
  void end_job(JobId job);
  // Ends all workers (SIGTERM, then SIGKILL). No worker is started from then on. `why`: the cause of their ends, instead of the signal.
  void end(std::optional<Error> why = {});

 private:
  // Members of Launcher::Events.
  void output(WorkerId worker, Launcher::Stream stream, std::string_view lines) override;
  void exited(WorkerId worker, runtime::ExitStatus status) override;

  void started(WorkerId id, Result<pid_t> pid, runtime::Responder& responder);
  void not_started(Worker& worker, const Error& why, runtime::Responder& responder);
  void gone(WorkerId worker, std::int32_t shell_code, const Error& cause);
  void end_session(const Worker& worker);
  void check_for_stopped();
  void found_stopped(const std::vector<std::pair<WorkerId, pid_t>>& seen, const std::set<pid_t>& stopped);
  void found(Worker& worker, StoppedWorkers::Finding finding);
  void send_signal(const Worker& worker, int signal);
  std::vector<MemoryUser> memory_users() const;

  runtime::Clock& clock_;
  Launcher& launcher_;
  const runtime::Log log_;
  const Options options_;
  const Events events_;
  Devices devices_;
  MemoryMonitor monitor_;
  StoppedWorkers stopped_;
  runtime::Timer looking_for_stopped_;
  std::map<WorkerId, Worker> workers_;
  std::set<JobId> torch_jobs_;
  runtime::Timer retiring_;
  std::uint64_t next_order_ = 1;
  bool ending_ = false;
  std::optional<Error> end_cause_;
  runtime::Timer killing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
