// Starts the head of this host again when its process ends although nobody asked for that. Lives in the node that was started with it.
//
// The new one runs the command line of the old one, on the same port; it finds its state in the session's folder. One that does not live
// for half a second is started again after a pause, each time twice as long, up to a second.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/session/folder.h"
#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

class HeadKeeper {
 public:
  // Of the head that runs now; none does: Unavailable.
  static Result<std::unique_ptr<HeadKeeper>> make(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                  actors::SessionFolder folder);
  // The cluster ends.
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
