// A run in few numbers: a line per rank, and what holds for the run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

// Medians are those of the newest 64 steps; parts are of a step.
struct RankSummary {
  int rank = 0;
  std::string host;
  std::int64_t pid = 0;
  Life life = Life::kUnknown;
  std::uint64_t step = 0;      // steps that have ended
  std::string activity, unit;  // as keys of docs/runs.md; "" if not known
  std::int64_t held_us = 0;    // how long the rank has been at this activity
  double step_us = 0, own_us = 0, exposed = 0, load = 0, cpu = 0;
  std::int64_t rss = 0;
};

struct Summary {
  std::vector<RankSummary> ranks;  // the ranks that are present (present_ranks)
  std::size_t hosts = 0;
  std::uint64_t step = 0;
  int generation = 1;
  double step_us = 0;
  std::int64_t began_us = 0, newest_us = 0;
  std::string checkpoint;
  std::vector<std::pair<std::string, double>> metrics;  // the newest value of each
};

Summary summary(const Run& run, std::int64_t now_us);
nlohmann::json to_json(const Summary& summary);

}  // namespace shoal::scheduler::runs
