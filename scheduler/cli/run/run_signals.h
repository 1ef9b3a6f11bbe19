// The signals of a host's part in a run: those that ask it to save and leave, and those that end it.
#pragma once

#include <csignal>

namespace shoal::scheduler::cli {

// Written by handlers. Each is the latest signal of its kind, or 0; a host may also take a request to leave for one to end.
extern volatile std::sig_atomic_t leave_signal, end_signal, num_end_signals;

// Call it before run_host.
void watch_run_signals();

}  // namespace shoal::scheduler::cli
