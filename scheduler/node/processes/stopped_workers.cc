#include "scheduler/node/processes/stopped_workers.h"

namespace shoal::scheduler {

StoppedWorkers::Finding StoppedWorkers::check(WorkerId worker, bool stopped) {
  const std::int64_t reported_at = checks_in(options_.report_after), ended_at = checks_in(options_.limit);
  if (!stopped) {
    const auto before = checks_.extract(worker);
    return !before.empty() && before.mapped() >= reported_at ? Finding::kContinues : Finding::kNone;
  }
  const std::int64_t num_checks = ++checks_[worker];
  if (ended_at > 0 && num_checks == ended_at) return Finding::kTooLong;
  return num_checks == reported_at ? Finding::kStopped : Finding::kNone;
}

}  // namespace shoal::scheduler
