// The ranks that train at present, and their steps side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

// The process that is a rank now. A folder also has those of earlier attempts and of workers that have left.
struct Rank {
  int rank = 0;
  const Process* process = nullptr;
};

// The present process of each rank that has one, ordered by rank.
std::vector<Rank> present_ranks(const Run& run);
// How many steps a rank has ended, by all that is recorded. A live page is up to a beat old, and a process that is killed loses its last
// rows. But the other ranks of its generation have not ended a step without it, so their steps count, too.
std::uint64_t reached_step(const Rank& rank, const std::vector<Rank>& ranks);
// The newest time that a process has left: of a step, sample or beat.
std::int64_t newest_us(const Process& process);

// Steps that all present ranks have taken in the present generation, the newest last. The first ones are left out: they compile, allocate
// and fill caches.
struct StepTable {
  std::vector<Rank> ranks;
  std::vector<std::uint64_t> steps;
  std::vector<std::int64_t> end_us;                        // the times of the steps' ends, from the first rank's rows
  std::vector<std::vector<const runtime::StepRow*>> rows;  // by rank's position, then step
  std::size_t size() const { return steps.size(); }
};
inline constexpr int kWarmUpSteps = 5;
inline constexpr std::size_t kMostTableSteps = 512;
StepTable step_table(const std::vector<Rank>& ranks);

// From the begin of the process's activity to its last beat, 0 without a live page. The process wrote both times itself. So a page that
// arrives late, a reader's clock that differs, or a process that has died makes no wait look longer than it was.
double held_us(const Process& process);

std::string host_of(const Rank& rank);
std::vector<std::string> hosts_of(const std::vector<Rank>& ranks);
// "rank 3 on host b", or without the host if the run has one host.
std::string name_of(const Rank& rank, const std::vector<Rank>& ranks);
std::string stack_command(const Rank& rank);
// A word for a shell, quoted where necessary, since other processes wrote the text, such as a host's name.
std::string shell_word(const std::string& text);
std::string duration_text(double us);
std::string bytes_text(double bytes);

}  // namespace shoal::scheduler::runs
