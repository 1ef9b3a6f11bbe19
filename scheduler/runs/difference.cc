#include "scheduler/runs/difference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "scheduler/runs/present.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using nlohmann::json;
using runtime::Activity;
using runtime::StepRow;

namespace {

constexpr std::size_t kLeastSteps = 8;
constexpr std::size_t kLeastDetailed = 3;
constexpr double kLeastPart = 0.02;  // a fraction of the step: smaller differences are not reported
constexpr double kDeviations = 4;    // a difference exceeds this many standard errors of both medians together
constexpr double kApart = 0.5;       // a rank stands out if its change differs from the others' median by this fraction of that
constexpr std::size_t kMostUnits = 20;

// Values per step, by rank.
using Values = std::vector<std::vector<double>>;
struct Measured {
  double us = 0, error = 0;
  std::size_t steps = 0;
};

Measured measured(const Values& by_rank) {
  std::vector<double> medians, errors;
  Measured out;
  for (const auto& values : by_rank) {
    if (values.empty()) continue;
    out.steps = std::max(out.steps, values.size());
    medians.push_back(median(values));
    // The standard error of a median, 1.25 sigma / sqrt(n), with sigma from the distance of the quartiles.
    errors.push_back(1.25 * (quantile(values, 0.75) - quantile(values, 0.25)) / 1.35 / std::sqrt(static_cast<double>(values.size())));
  }
  out.us = median(medians), out.error = median(errors);
  return out;
}

Compared compared(std::string activity, std::string unit, const Measured& before, const Measured& after, double step_us) {
  Compared out{std::move(activity), std::move(unit), before.us, after.us, std::min(before.steps, after.steps), false};
  const double error = std::sqrt(before.error * before.error + after.error * after.error);
  out.differs = std::abs(out.change_us()) > std::max(kDeviations * error, kLeastPart * step_us);
  return out;
}

// By rank: a time of each step. Rows of several steps count as one value.
Values of_steps(const Run& run, const std::function<double(const StepRow&)>& time) {
  Values out;
  for (const auto& r : present_ranks(run)) {
    auto& values = out.emplace_back();
    for (const auto& row : r.process->steps.rows)
      if (row.step > static_cast<std::uint64_t>(kWarmUpSteps) + static_cast<std::uint64_t>(row.steps - 1))
        values.push_back(time(row) / static_cast<double>(row.steps));
  }
  return out;
}

// By activity and unit, then by rank: the time of each detailed step.
std::map<std::pair<Activity, std::string>, Values> of_units(const Run& run) {
  std::map<std::pair<Activity, std::string>, Values> out;
  const auto ranks = present_ranks(run);
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const auto& p = *ranks[k].process;
    for (const auto& row : p.spans.rows) {
      if (row.step <= static_cast<std::uint64_t>(kWarmUpSteps)) continue;
      std::map<std::pair<Activity, std::string>, double> sums;
      for (const auto& s : row.spans)
        if (s.unit >= 0) sums[{s.activity, p.unit_name(s.unit)}] += static_cast<double>(s.length_us);
      for (const auto& [key, us] : sums) {
        auto& values = out[key];
        values.resize(ranks.size());
        values[k].push_back(us);
      }
    }
  }
  return out;
}

// Compares the own work of ranks that both runs have. `differs` is true for a rank whose work changed otherwise than that of the others.
std::vector<RankCompared> of_ranks(const Run& before, const Run& after, double step_us) {
  const auto own = [](const StepRow& r) { return static_cast<double>(r.own_us()); };
  const auto ranks_before = present_ranks(before), ranks_after = present_ranks(after);
  const auto values_before = of_steps(before, own), values_after = of_steps(after, own);
  std::vector<RankCompared> out;
  std::vector<double> errors;
  for (std::size_t i = 0; i < ranks_before.size(); ++i) {
    const auto same = std::find_if(ranks_after.begin(), ranks_after.end(), [&](const Rank& r) { return r.rank == ranks_before[i].rank; });
    if (same == ranks_after.end()) continue;
    const auto a = measured(Values{values_before[i]}),
               b = measured(Values{values_after[static_cast<std::size_t>(same - ranks_after.begin())]});
    if (std::min(a.steps, b.steps) < kLeastSteps) continue;
    out.push_back({ranks_before[i].rank, compared("own", "", a, b, step_us)});
    errors.push_back(kDeviations * std::sqrt(a.error * a.error + b.error * b.error));
  }
  std::vector<bool> stands_out(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<double> others;
    for (std::size_t k = 0; k < out.size(); ++k)
      if (k != i) others.push_back(out[k].own.change_us());
    const double apart = std::abs(out[i].own.change_us() - median(others));
    stands_out[i] =
        !others.empty() && out[i].own.differs && apart > std::max({errors[i], kLeastPart * step_us, kApart * std::abs(median(others))});
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i].own.differs = stands_out[i];
  return out;
}

std::string activity_name(const Compared& c) {
  static const std::map<std::string, std::string> kNames = {{"out", "the program outside of the step"},
                                                            {"load", "the data loader"},
                                                            {"fwd", "forward"},
                                                            {"bwd", "backward"},
                                                            {"opt", "the optimizer"},
                                                            {"save", "checkpoints"},
                                                            {"gather", "waits for parameters"},
                                                            {"reduce", "waits for gradients"},
                                                            {"window", "waits for readers of parameters"},
                                                            {"sync", "waits for the other ranks"}};
  const auto name = kNames.find(c.activity);
  const std::string activity = name == kNames.end() ? c.activity : name->second;
  return c.unit.empty() ? activity : activity + " of " + c.unit;
}

// "; rank 3 changed most: 25 ms of own work, before 15 ms", or "" if no rank changed otherwise than the others.
std::string rank_text(const Difference& d) {
  const auto most = std::max_element(d.ranks.begin(), d.ranks.end(), [](const RankCompared& a, const RankCompared& b) {
    return std::make_pair(a.own.differs, std::abs(a.own.change_us())) < std::make_pair(b.own.differs, std::abs(b.own.change_us()));
  });
  if (most == d.ranks.end() || !most->own.differs) return "";
  return fmt::format("; rank {} changed most: {} of own work, before {}", most->rank, duration_text(most->own.after_us),
                     duration_text(most->own.before_us));
}

std::string sentence_of(const Difference& d) {
  const double part = d.step.change_us() / std::max(d.step.before_us, 1.0);
  const std::string steps = fmt::format("a step takes {}, before {}", duration_text(d.step.after_us), duration_text(d.step.before_us));
  if (!d.step.differs) {
    const auto grown = std::max_element(d.activities.begin(), d.activities.end(), [](const Compared& a, const Compared& b) {
      return std::make_pair(a.differs, std::abs(a.change_us())) < std::make_pair(b.differs, std::abs(b.change_us()));
    });
    if (grown == d.activities.end() || !grown->differs) return steps + ": no difference above the noise";
    return steps + fmt::format(", which is within the noise; {} {} by {}", activity_name(*grown),
                               grown->change_us() > 0 ? "grew" : "shrank", duration_text(std::abs(grown->change_us())));
  }
  std::string out = fmt::format("{}: {:.0f} % {}", steps, std::abs(part) * 100, part > 0 ? "longer" : "shorter");
  // Names the activity that changed most in the direction of the step, and the unit of that activity that did.
  const auto same = [&](const Compared& c) { return c.differs && (c.change_us() > 0) == (part > 0); };
  const auto less = [&](const Compared& a, const Compared& b) {
    return std::abs(a.change_us()) * same(a) < std::abs(b.change_us()) * same(b);
  };
  const auto activity = std::max_element(d.activities.begin(), d.activities.end(), [&](const Compared& a, const Compared& b) {
    return a.activity == "own" || (b.activity != "own" && less(a, b));
  });
  if (activity == d.activities.end() || !same(*activity)) return out;
  const auto unit =
      std::find_if(d.units.begin(), d.units.end(), [&](const Compared& c) { return c.activity == activity->activity && same(c); });
  const auto& most = unit == d.units.end() ? *activity : *unit;
  return out + fmt::format(", most in {} ({}{}, before {})", activity_name(most), most.change_us() > 0 ? "+" : "-",
                           duration_text(std::abs(most.change_us())), duration_text(most.before_us));
}

json to_json(const Compared& c) {
  return {{"activity", c.activity}, {"unit", c.unit},   {"before_us", c.before_us},
          {"after_us", c.after_us}, {"steps", c.steps}, {"differs", c.differs}};
}

}  // namespace

Difference difference(const Run& before, const Run& after) {
  Difference out;
  const auto both = [&](std::string activity, const std::function<double(const StepRow&)>& time, double step_us) {
    return compared(std::move(activity), "", measured(of_steps(before, time)), measured(of_steps(after, time)), step_us);
  };
  out.step = both("step", [](const StepRow& r) { return static_cast<double>(r.total_us); }, 0);
  const double step_us = std::max(out.step.before_us, 1.0);
  out.step.differs = out.step.differs && std::abs(out.step.change_us()) > kLeastPart * step_us;
  out.activities.push_back(both("own", [](const StepRow& r) { return static_cast<double>(r.own_us()); }, step_us));
  for (int i = 0; i < runtime::kNumActivities; ++i) {
    const auto activity = static_cast<Activity>(i);
    out.activities.push_back(
        both(runtime::key_of(activity), [activity](const StepRow& r) { return static_cast<double>(r.in(activity)); }, step_us));
  }
  const auto units_before = of_units(before), units_after = of_units(after);
  for (const auto& [key, values] : units_after) {
    const auto other = units_before.find(key);
    if (other == units_before.end()) continue;
    auto c = compared(runtime::key_of(key.first), key.second, measured(other->second), measured(values), 0);
    // A unit is a small part of a step, so its own time has to differ by a tenth.
    if (c.steps >= kLeastDetailed && c.differs && std::abs(c.change_us()) > std::max(0.1 * c.before_us, 0.005 * step_us))
      out.units.push_back(std::move(c));
  }
  std::sort(out.units.begin(), out.units.end(), [](const Compared& a, const Compared& b) { return a.change_us() > b.change_us(); });
  if (out.step.change_us() < 0) std::reverse(out.units.begin(), out.units.end());
  if (out.units.size() > kMostUnits) out.units.resize(kMostUnits);
  out.ranks = of_ranks(before, after, step_us);
  if (out.step.steps >= kLeastSteps) out.sentence = sentence_of(out) + rank_text(out);
  return out;
}

json to_json(const Difference& d) {
  json activities = json::array(), units = json::array(), ranks = json::array();
  for (const auto& c : d.activities) activities.push_back(to_json(c));
  for (const auto& c : d.units) units.push_back(to_json(c));
  for (const auto& r : d.ranks) {
    ranks.push_back(to_json(r.own));
    ranks.back()["rank"] = r.rank;
  }
  return {{"sentence", d.sentence},
          {"step", to_json(d.step)},
          {"activities", std::move(activities)},
          {"units", std::move(units)},
          {"ranks", std::move(ranks)}};
}

}  // namespace shoal::scheduler::runs
