#include "scheduler/runs/verdict.h"

#include <algorithm>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

namespace {

// The order of verdicts: what ended the run, what stopped it, what spoils its result, what slows it.
constexpr const char* kOrder[] = {
    "dead_rank", "lost",      "failed",      "dead_driver", "silent_rank",           "hang",       "not_finite", "memory",
    "full_disk", "straggler", "slow_loader", "slow_disk",   "exposed_communication", "loss_spike", "clock_jump"};
// Notes, which are no troubles: they come behind the verdict that all is well.
constexpr const char* kLast[] = {"waiting", "deaths"};

bool is_last(const Verdict& v) { return std::find(std::begin(kLast), std::end(kLast), v.code) != std::end(kLast); }

std::size_t place_of(const Verdict& v) {
  return static_cast<std::size_t>(std::find(std::begin(kOrder), std::end(kOrder), v.code) - std::begin(kOrder));
}

Verdict without_trouble(const Run& run, const std::vector<Rank>& ranks, const StepTable& table) {
  Verdict v;
  std::uint64_t step = 0;
  for (const auto& r : ranks) {
    if (!r.process->steps.rows.empty()) step = std::max(step, r.process->steps.rows.back().step);
    if (r.process->live) step = std::max(step, r.process->live->step);
  }
  const std::string who = ranks.size() == 1 ? "1 rank" : fmt::format("{} ranks", ranks.size());
  std::vector<double> total, exposed;
  for (std::size_t i = table.size() - std::min<std::size_t>(table.size(), 64); i < table.size(); ++i) {
    total.push_back(static_cast<double>(table.rows[0][i]->total_us));
    std::vector<double> parts;
    for (const auto& rows : table.rows) parts.push_back(rows[i]->exposed_part());
    exposed.push_back(median(std::move(parts)));
  }
  if (run.state != RunState::kRunning) {
    v.code = run.state == RunState::kEnded ? "ended" : "empty";
    v.sentence = run.state == RunState::kEnded ? fmt::format("the run ended in order after {} steps", step) : "the run has no processes";
  } else if (table.size() < 8) {
    v.code = "starting";
    v.sentence = ranks.empty() ? "the run starts: no rank has begun" : fmt::format("the run starts: {}, {} steps", who, step);
  } else {
    v.code = "ok";
    v.sentence =
        fmt::format("{} {}, {} per step: no trouble is known", who, ranks.size() == 1 ? "trains" : "train", duration_text(median(total)));
  }
  if (!total.empty())
    v.evidence.push_back(
        fmt::format("{} per step, {:.0f} % of it exposed communication", duration_text(median(total)), median(exposed) * 100));
  v.since_step = step;
  return v;
}

}  // namespace

const char* health_text(Health health) {
  switch (health) {
    case Health::kSlow:
      return "slow";
    case Health::kStopped:
      return "stopped";
    case Health::kFailed:
      return "failed";
    case Health::kOk:
      break;
  }
  return "ok";
}

bool is_note(const Verdict& v) { return is_last(v) || v.code == "clock_jump"; }

nlohmann::json to_json(const Verdict& v) {
  nlohmann::json out = {{"code", v.code}, {"sentence", v.sentence}, {"state", health_text(v.state)}, {"evidence", v.evidence}};
  if (v.rank) out["rank"] = *v.rank;
  if (!v.host.empty()) out["host"] = v.host;
  if (v.since_step > 0) out["since_step"] = v.since_step;
  if (v.since_us > 0) out["since"] = v.since_us;
  if (v.cost) out["cost"] = *v.cost;
  if (!v.next.empty()) out["next"] = v.next;
  return out;
}

std::vector<Verdict> diagnose(const Run& run, std::int64_t now_us) {
  const auto ranks = present_ranks(run);
  const auto table = step_table(ranks);
  std::vector<Verdict> out;
  find_stuck(run, ranks, table, now_us, out);
  find_numbers(run, out);
  find_resources(run, ranks, now_us, out);
  find_slow(run, table, out);
  find_deaths(run, out);
  // Drops the note that others wait for a rank, if a trouble of that rank explains it.
  const auto waits = std::find_if(out.begin(), out.end(), [](const Verdict& v) { return v.code == "waiting"; });
  const auto explains = [&](const Verdict& v) { return v.state != Health::kOk && v.rank == waits->rank; };
  if (waits != out.end() && std::any_of(out.begin(), out.end(), explains)) out.erase(waits);
  std::stable_sort(out.begin(), out.end(), [](const Verdict& a, const Verdict& b) { return place_of(a) < place_of(b); });
  // Commands that inspect processes are of no use once the run has ended.
  for (auto& v : out)
    if (run.state != RunState::kRunning && (v.next.starts_with("shoal ") || v.next.starts_with("ps "))) v.next.clear();
  const auto notes = std::find_if(out.begin(), out.end(), is_last);
  if (notes == out.begin()) out.insert(notes, without_trouble(run, ranks, table));
  return out;
}

}  // namespace shoal::scheduler::runs
