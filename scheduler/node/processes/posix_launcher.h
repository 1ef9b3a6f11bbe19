// The launcher of real processes: zygotes fork Python's, and all others are executed.
#pragma once

#include <memory>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/random.h"
#include "scheduler/node/processes/launcher.h"

namespace shoal::scheduler {

struct PosixLauncherOptions {
  // Interpreter of a zygote that is kept warm from the start; "": none is.
  std::string python;
};

// Makes this process a subreaper: it adopts what its workers leave. All references outlive the launcher, whose destructor kills all
// processes that it has started.
std::unique_ptr<Launcher> make_posix_launcher(runtime::Loop& loop, runtime::Random& random, runtime::Log log, PosixLauncherOptions options);

}  // namespace shoal::scheduler
