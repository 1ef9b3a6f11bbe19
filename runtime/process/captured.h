// Runs a program to its end and keeps what it writes. For programs that end soon by themselves; for others, use ProcessWatch.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "runtime/core/result.h"
#include "runtime/process/process.h"

namespace shoal::runtime {

struct CaptureLimits {
  std::chrono::nanoseconds time = std::chrono::minutes(1);  // from the start to the end
  std::size_t out_bytes = 16 << 20;
  std::size_t err_bytes = 64 << 10;  // the last ones are kept when there are more
};

struct Captured {
  ExitStatus ended;
  std::string out, err;
};

// Blocks until the program has ended, and reads both streams meanwhile: neither of them can fill up and stop it. Descendants that outlive
// the program are not awaited. `spec.out` and `spec.err` are replaced. Returns DeadlineExceeded or ResourceExhausted beyond the limits,
// after it has killed the program's process group. Other errors are those of spawn().
Result<Captured> run_captured(SpawnSpec spec, const CaptureLimits& limits);

}  // namespace shoal::runtime
