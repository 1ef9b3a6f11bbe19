// Starts and ends processes for a node: a real one (posix_launcher.h) or a simulated one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class Launcher {
 public:
  using Env = std::vector<std::pair<std::string, std::string>>;
  enum class Stream : std::uint16_t { kOut = 1, kErr = 2 };

  class Events {
   public:
    // Called with whole lines, each with its newline. All output of a worker comes before exited().
    virtual void output(WorkerId worker, Stream stream, std::string_view lines) = 0;
    virtual void exited(WorkerId worker, runtime::ExitStatus status) = 0;

   protected:
    ~Events() = default;
  };

  virtual ~Launcher() = default;
  virtual void set_events(Events* events) = 0;
  // Starts a process. Calls `started` with its pid once it runs, or with an error. `env` is added to the environment in `spec`.
  virtual void start(const actors::StartWorker& spec, const Env& env, std::function<void(Result<pid_t>)> started) = 0;
  // Calls output() for all that workers have printed so far.
  virtual void drain_output() = 0;
  // Calls output() for the unfinished lines of a worker, as whole lines.
  virtual void end_lines(WorkerId worker) = 0;
  // Sends a signal to a worker and its process group, but not to daemons, which have a session of their own. No effect if the worker is
  // unknown or has ended.
  virtual void signal(WorkerId worker, int signal) = 0;
  // Sends a signal to a process that this launcher did not start, or has lost, but not to its group.
  virtual void signal_process(pid_t pid, int signal) = 0;
  // Calls `gone` when a process ends that this launcher did not start.
  virtual std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone) = 0;
  // Ends the zygotes that have imported torch, which no job needs any more.
  virtual void retire_torch() = 0;
  // Returns an unused TCP port of this host.
  virtual Result<std::uint16_t> free_port() = 0;
};

}  // namespace shoal::scheduler
