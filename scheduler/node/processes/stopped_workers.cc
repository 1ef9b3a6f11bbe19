#include "scheduler/node/processes/stopped_workers.h"

namespace shoal::scheduler {

StoppedWorkers::Finding StoppedWorkers::check(WorkerId worker, bool stopped) {
  const std::int64_t reported_at = looks_in(options_.report_after), ended_at = looks_in(options_.limit);
  if (!stopped) {
    const auto before = looks_.extract(worker);
    return !before.empty() && before.mapped() >= reported_at ? Finding::kContinues : Finding::kNone;
  }
  const std::int64_t looks = ++looks_[worker];
  if (ended_at > 0 && looks == ended_at) return Finding::kTooLong;
  return looks == reported_at ? Finding::kStopped : Finding::kNone;
}

}  // namespace shoal::scheduler
