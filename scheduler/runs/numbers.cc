// Numbers of the training that are not finite, or a loss that leaps.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

namespace {

// Gradients of float16 overflow now and then, and a gradient scaler skips such a step. So only several in a row are a trouble.
constexpr int kLeastNorms = 3;
// A loss leaps if kLeapReports reports in a row lie above the median of at least kLeapBefore earlier ones: by kLeapDeviations deviations,
// and by kLeapFactor.
constexpr std::size_t kLeapReports = 3, kLeapBefore = 16, kMostBefore = 64, kMostReports = 256;
constexpr double kLeapDeviations = 8, kLeapFactor = 1.5;
constexpr double kLeastLeap = 0.01;  // a fraction of the run's largest loss: losses near zero vary by many times themselves

struct Value {
  std::uint64_t step = 0;
  std::int64_t t_us = 0;
  double value = 0;
  int rank = 0;
};

// True for the name of a loss, but not for that of the best loss so far, which programs begin with infinity.
bool is_loss(const std::string& name) {
  if (name.size() < 4 || std::tolower(static_cast<unsigned char>(name.back())) != 's') return false;
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.ends_with("loss") && lower.find("best") == std::string::npos && lower.find("min") == std::string::npos;
}

void not_finite(const Run& run, const std::string& what, const Value& first, std::size_t count, std::vector<Verdict>& out) {
  Verdict v;
  v.code = "not_finite", v.state = Health::kFailed;
  v.rank = first.rank < 0 ? std::nullopt : std::optional(first.rank);
  v.since_step = first.step, v.since_us = first.t_us;
  for (const auto& p : run.processes)
    if (p.rank() == first.rank && first.rank >= 0) v.host = p.facts.host;
  v.sentence = fmt::format("{} is {} since step {}{}", what, std::isnan(first.value) ? "NaN" : "infinite", first.step,
                           v.rank ? fmt::format(", on rank {}", *v.rank) : "");
  if (count > 1) v.evidence.push_back(fmt::format("{} reports in a row", count));
  v.evidence.push_back("later steps train with it");
  v.next = "go on from a checkpoint before this step, with torch.autograd.set_detect_anomaly(True)";
  out.push_back(std::move(v));
}

void find_in_metrics(const Run& run, const std::string& name, const std::vector<Value>& values, std::vector<Verdict>& out) {
  // The run of values at the end that are not finite.
  std::size_t from = values.size();
  while (from > 0 && !std::isfinite(values[from - 1].value)) --from;
  if (from < values.size()) return not_finite(run, name, values[from], values.size() - from, out);
  if (values.size() < kLeapBefore + kLeapReports) return;
  // If half of the newest reports are as high as the last one, this level is usual now, and no leap.
  std::vector<double> newest;
  for (std::size_t i = values.size() - std::min(values.size(), kMostReports); i < values.size(); ++i) newest.push_back(values[i].value);
  if (newest.back() <= median(newest) + (kLeapFactor - 1) / 2 * std::abs(median(newest))) return;
  // Finds the values in a row at the end that lie above the usual level before them; `leap` is the first of these.
  std::vector<double> before;
  std::size_t leap = 0, in_row = 0;
  double usual = 0, deviation = 0, largest = 0;
  for (const auto& v : values) largest = std::max(largest, std::abs(v.value));
  for (std::size_t i = values.size() - newest.size(); i < values.size(); ++i) {
    const double value = values[i].value;
    if (before.size() >= kLeapBefore) {
      const auto recent = last(before, kMostBefore);
      usual = median(recent);
      std::vector<double> apart;
      for (const double b : recent) apart.push_back(std::abs(b - usual));
      deviation = 1.4826 * median(std::move(apart));
      if (value > usual + kLeapDeviations * deviation &&
          value > usual + std::max((kLeapFactor - 1) * std::abs(usual), kLeastLeap * largest)) {
        if (in_row++ == 0) leap = i;
        continue;
      }
    }
    in_row = 0;
    before.push_back(value);
  }
  if (in_row < kLeapReports) return;
  const auto& at = values[leap];
  Verdict v;
  v.code = "loss_spike", v.state = Health::kSlow;
  v.since_step = at.step, v.since_us = at.t_us;
  v.sentence = fmt::format("{} leapt from {:.4g} to {:.4g} in step {}", name, usual, at.value, at.step);
  v.evidence.push_back(fmt::format("{} reports in a row; before, it varied by {:.2g}", in_row, deviation));
  v.next = "a lower learning rate or clipped gradients, from a checkpoint before this step";
  out.push_back(std::move(v));
}

}  // namespace

void find_numbers(const Run& run, std::vector<Verdict>& out) {
  std::map<std::string, std::vector<Value>> losses;
  std::map<std::string, std::vector<Value>> events;  // events of the kind not_finite, by their field `what`
  std::uint64_t finite_step = 0;                     // the newest step with a finite loss
  for (const auto& p : run.processes) {
    for (const auto& row : p.metrics.rows) {
      for (const auto& [name, value] : row.values) {
        if (!is_loss(name)) continue;
        losses[name].push_back({row.step, row.t_us, value, p.rank()});
        if (std::isfinite(value)) finite_step = std::max(finite_step, row.step);
      }
    }
    for (const auto& e : p.events.rows) {
      const auto what = text_in(e, "what");
      if (what.empty()) continue;
      if (e.kind == "finite") std::erase_if(events[what], [&](const Value& v) { return v.rank == p.rank(); });
      if (e.kind != "not_finite") continue;
      const auto step = static_cast<std::uint64_t>(std::max<std::int64_t>(number_in(e, "step"), 0));
      events[what].push_back({step, e.t_us, text_in(e, "value") == "inf" ? INFINITY : std::nan(""), p.rank()});
    }
  }
  const auto by_step = [](const Value& a, const Value& b) { return std::make_pair(a.step, a.t_us) < std::make_pair(b.step, b.t_us); };
  for (auto& [what, values] : events) {
    if (values.empty()) continue;
    std::stable_sort(values.begin(), values.end(), by_step);
    const bool is_norm = !is_loss(what);
    // Goes back from the last report, as long as the reports are of consecutive steps.
    std::size_t from = values.size() - 1, steps = 1;
    for (; from > 0 && values[from].step <= values[from - 1].step + 2; --from) steps += values[from].step != values[from - 1].step;
    if (finite_step > values.back().step || (is_norm && steps < kLeastNorms)) continue;
    // The first rank has spoilt the numbers of the others by its gradients. If several ranks report in the first step, as with a mean, none
    // of them is named.
    auto first = values[from];
    for (const auto& other : values)
      if (other.step == first.step && other.rank != first.rank) first.rank = -1;
    not_finite(run, what, first, is_norm ? steps : 1, out);
    return;
  }
  for (auto& [name, values] : losses) {
    std::stable_sort(values.begin(), values.end(), by_step);
    const auto size = out.size();
    find_in_metrics(run, name, values, out);
    if (out.size() > size) return;
  }
}

}  // namespace shoal::scheduler::runs
