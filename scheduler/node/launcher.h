// Starts and ends processes for a node: a real one (posix_launcher.h) or a simulated one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/wire/messages.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class Launcher {
 public:
  using Env = std::vector<std::pair<std::string, std::string>>;
  enum class Stream : std::uint16_t { kOut = 1, kErr = 2 };

  class Events {
   public:
    // Whole lines, each with its newline; all of them before exited().
    virtual void output(WorkerId worker, Stream stream, std::string_view lines) = 0;
    virtual void exited(WorkerId worker, runtime::ExitStatus status) = 0;

   protected:
    ~Events() = default;
  };

  virtual ~Launcher() = default;
  virtual void set_events(Events* events) = 0;
  // Answers with the pid once it runs, or why it cannot. `env` goes on top of the launch's own.
  virtual void start(const actors::StartWorker& spec, const Env& env, std::function<void(Result<pid_t>)> started) = 0;
  // Calls output() for all that workers have printed by now.
  virtual void drain_output() = 0;
  // To the worker and all it started that stayed in its process group (not what made a session of its own: a daemon). Unknown or gone:
  // nothing.
  virtual void signal(WorkerId worker, int signal) = 0;
  // Calls back when a process that this launcher did not start is gone.
  virtual std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone) = 0;
  // No job wants torch any more: what is kept warm for it ends.
  virtual void retire_torch() = 0;
  // A TCP port of this host that nobody listens on.
  virtual Result<std::uint16_t> free_port() = 0;
};

}  // namespace shoal::scheduler
