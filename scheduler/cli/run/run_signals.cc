#include "scheduler/cli/run/run_signals.h"

#include "runtime/process/process.h"

namespace shoal::scheduler::cli {

volatile std::sig_atomic_t leave_signal = 0, end_signal = 0, num_end_signals = 0;

void watch_run_signals() {
  for (const int number : {SIGTERM, SIGUSR1, SIGUSR2}) std::signal(number, [](int n) { leave_signal = n; });
  for (const int number : {SIGINT, SIGHUP}) {
    if (runtime::is_ignored(number)) continue;  // ignored by nohup, or in the background of a script
    std::signal(number, [](int n) {
      end_signal = n;
      num_end_signals = num_end_signals + 1;
    });
  }
}

}  // namespace shoal::scheduler::cli
