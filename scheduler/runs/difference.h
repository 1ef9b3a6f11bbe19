// Two runs side by side: what takes longer in the second one, by activity and by unit of the model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

// Microseconds per step: the median over ranks of their medians over steps. The first steps of a run are left out.
struct Compared {
  std::string activity, unit;  // a key of docs/runs.md, "step" or "own"; a unit's name, or ""
  double before_us = 0, after_us = 0;
  std::size_t steps = 0;  // the number of steps behind the medians, of the run that has fewer
  bool differs = false;   // by more than the noise of both, and more than 2 %
  double change_us() const { return after_us - before_us; }
};

struct RankCompared {
  int rank = 0;
  Compared own;  // its own work; `differs`: it changed otherwise than that of the other ranks
};

struct Difference {
  Compared step;
  std::vector<Compared> activities;  // in the order of docs/runs.md; "own" first
  std::vector<Compared> units;       // units whose times in the detailed steps differ, the largest growth first
  std::vector<RankCompared> ranks;   // ranks that both runs have
  std::string sentence;
};

// Returns an empty sentence if one of the runs has fewer than 8 steps after its first ones, the warm-up.
Difference difference(const Run& before, const Run& after);
nlohmann::json to_json(const Difference& difference);

}  // namespace shoal::scheduler::runs
