// The troubles, by what shows them. Each function adds its verdicts to `out`, if there are any.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/runs/present.h"
#include "scheduler/runs/run.h"
#include "scheduler/runs/verdict.h"

namespace shoal::scheduler::runs {

// From the steps (slow.cc): straggler, slow_loader, exposed_communication.
void find_slow(const Run& run, const StepTable& table, std::vector<Verdict>& out);
// From live pages (stuck.cc): dead_rank, dead_driver, silent_rank, hang, and failed or lost runs.
void find_stuck(const Run& run, const std::vector<Rank>& ranks, const StepTable& table, std::int64_t now_us, std::vector<Verdict>& out);
// From samples and events (resources.cc): memory, full_disk, slow_disk, clock_jump.
void find_resources(const Run& run, const std::vector<Rank>& ranks, std::int64_t now_us, std::vector<Verdict>& out);
// From events (deaths.cc): deaths, a note on what an elastic training has survived.
void find_deaths(const Run& run, std::vector<Verdict>& out);
// From metrics and events (numbers.cc): not_finite, loss_spike.
void find_numbers(const Run& run, std::vector<Verdict>& out);

}  // namespace shoal::scheduler::runs
