// Notices workers that a signal has stopped (SIGSTOP): none of their threads runs, so calls and collectives that wait for them hang.
//
// A worker that computes for hours, holds the GIL or waits for another is not stopped: only the kernel's state of its process counts. A
// worker that a debugger has stopped does not count either. The class counts checks instead of time, so that a pause of the node itself
// ends no worker. Pure.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/core/id.h"
#include "runtime/loop/clock.h"

namespace shoal::scheduler {

class StoppedWorkers {
 public:
  struct Options {
    runtime::Duration interval = std::chrono::seconds(2);       // time between two checks
    runtime::Duration report_after = std::chrono::seconds(10);  // how long a worker is stopped before it is reported
    runtime::Duration limit = std::chrono::seconds(60);         // how long it is stopped before its node ends it; 0: for ever
  };
  explicit StoppedWorkers(Options options) : options_(options) {}

  enum class Finding : std::uint8_t { kNone, kStopped, kContinues, kTooLong };
  // The outcome of a check of a worker. Each finding is returned once per stop.
  Finding check(WorkerId worker, bool stopped);
  void ended(WorkerId worker) { checks_.erase(worker); }

 private:
  std::int64_t checks_in(runtime::Duration time) const { return (time + options_.interval - runtime::Duration(1)) / options_.interval; }

  const Options options_;
  std::map<WorkerId, std::int64_t> checks_;  // number of checks in a row that found a worker stopped
};

}  // namespace shoal::scheduler
