// The real Launcher: zygotes for Python, exec for everything else.
#pragma once

#include <memory>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/random.h"
#include "scheduler/node/launcher.h"

namespace shoal::scheduler {

struct PosixLauncherOptions {
  std::string python;  // interpreter of the zygote that is kept warm from the start; "" keeps none
};

// Makes this process a subreaper. All references outlive the launcher, whose destructor kills everything it started.
std::unique_ptr<Launcher> make_posix_launcher(runtime::Loop& loop, runtime::Random& random, runtime::Log log, PosixLauncherOptions options);

}  // namespace shoal::scheduler
