// Restarts this host's head when its process ends without a request to. It runs in the node that was started with that head.
//
// The new head runs the old command line on the same port and finds its state in the session's folder. After a head that lived less than
// half a second, restarts pause; the pause doubles up to a second.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/session/folder/folder.h"
#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class HeadKeeper {
 public:
  // Watches the running head; Unavailable when none runs.
  static Result<std::unique_ptr<HeadKeeper>> make(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                  actors::SessionFolder folder);
  // The cluster ends: no more restarts.
  void stop() { stopped_ = true; }

 private:
  HeadKeeper(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, actors::SessionFolder folder)
      : loop_(loop), clock_(clock), log_(std::move(log)), folder_(std::move(folder)) {}
  void watch(pid_t pid);
  void ended(const runtime::ExitStatus& status);
  void start();

  runtime::Loop& loop_;
  runtime::Clock& clock_;
  const runtime::Log log_;
  const actors::SessionFolder folder_;
  std::vector<std::string> command_;
  pid_t pid_ = 0;
  runtime::TimePoint started_{};
  int early_ends_ = 0;
  bool stopped_ = false;
  std::unique_ptr<runtime::ProcessWatch> watch_;
  runtime::Timer starting_;
};

}  // namespace shoal::scheduler
