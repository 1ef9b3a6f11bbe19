// Deaths that an elastic training has survived.
#include <algorithm>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"

namespace shoal::scheduler::runs {

void find_deaths(const Run& run, std::vector<Verdict>& out) {
  std::int64_t deaths = 0, steps_lost = 0, pause_us = 0;
  const Event *last = nullptr, *change = nullptr;
  for (const auto& p : run.processes) {
    if (p.facts.role != "driver") continue;
    for (const auto& e : p.events.rows) {
      if (e.kind == "death") ++deaths, last = &e;
      if (e.kind != "generation" || text_in(e, "cause") != "dies") continue;
      change = &e;
      steps_lost += number_in(e, "steps_lost");
      pause_us += number_in(e, "pause_us");
    }
  }
  if (change == nullptr || last == nullptr) return;  // the training has not gone on yet
  Verdict v;
  v.code = "deaths";
  v.since_us = last->t_us;
  v.since_step = static_cast<std::uint64_t>(std::max<std::int64_t>(number_in(*change, "step"), 0)) + 1;
  v.sentence = fmt::format(
      "{}, {}: the training has gone on each time, after pauses of {} in all", deaths == 1 ? "1 death" : fmt::format("{} deaths", deaths),
      steps_lost == 1 ? "1 step lost" : fmt::format("{} steps lost", steps_lost), duration_text(static_cast<double>(pause_us)));
  const auto cause = text_in(*last, "cause");
  v.evidence.push_back(fmt::format("the last one before step {}: {}", v.since_step, cause.substr(0, cause.find('\n'))));
  out.push_back(std::move(v));
}

}  // namespace shoal::scheduler::runs
