// Ranks that hold up the others by their computation or their loader, and communication that no computation hides.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::StepRow;

namespace {

// A trouble has lasted at least this long and this many steps: shorter ones are bursts of the machine, and over before somebody acts.
constexpr double kLeastUs = 700'000;
constexpr double kLongStep = 3;  // times the median step: a longer step counts as this long (span_us)
constexpr std::size_t kWindows[] = {8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256};
// If the history is shorter than two windows, noise is hardly known. Then the window has at least so many steps, and lasts so long.
constexpr std::size_t kLeastStepsAlone = 16;
constexpr double kLeastAloneUs = 1'000'000;

// Ranks differ by less than this fraction on healthy machines: caches, clocks, the first rank's extra work.
constexpr double kLeastSlower = 0.25;
// A rank that was not slow from the begin has to have become slower by this fraction.
constexpr double kLeastChange = 0.2;
// A median of n steps varies by 1.25 sigma / sqrt(n). Thousands of windows are judged, with heavy tails: so a trouble
// exceeds the noise by this many deviations.
constexpr double kDeviations = 5;
// The noise of neighbouring steps is correlated. Blocks of as many steps, earlier or on other ranks, show how strongly. A trouble exceeds
// such blocks by this factor.
constexpr double kAboveBlocks = 1.5;
constexpr std::int64_t kLeastSharedUs = 5'000'000;  // how long a rank has to lag if all ranks share CPUs with other processes
constexpr double kMostSteps = 0.85;                 // the fraction of the window's steps that show at least half of the trouble
constexpr double kLeastCost = 0.05;                 // a fraction of the step: a smaller cost is not reported

constexpr double kLeastLoader = 0.3;    // the least fraction of the step in the loader, or outside of the step
constexpr double kLeastProgram = 0.5;   // the same for a fraction that is as large from the begin, if most of it lies outside of the step
constexpr double kLeastGrowth = 0.2;    // the least growth of a fraction of the step, or its least distance above that of other ranks
constexpr double kLeastExposed = 0.3;   // the least fraction of the step that is exposed, on the rank that waits least
constexpr double kLeastPartUs = 3'000;  // per step: shorter parts are overheads of tiny models
constexpr double kLeastStepUs = 5'000;  // steps so short are mostly overhead, which is no loader's or network's fault
constexpr double kLeastComputedUs = 1'000;
constexpr double kMostPressure = 25;  // percent: beyond, ranks wait because they share CPUs, not for the network
constexpr double kLeastCpu = 0.7;     // CPU time as a fraction of the own work: less also shows that ranks share CPUs

// Causes of a straggler.
constexpr double kSharedRunqueue = 0.15;  // the fraction of the time in which the rank waits for a CPU, beyond that of before
constexpr double kSharedPart = 0.5;       // the fraction of the excess that is time without a CPU
constexpr double kFaultsPerSecond = 20;

double compute_us(const StepRow& r) {
  return static_cast<double>(r.in(Activity::kForward) + r.in(Activity::kBackward) + r.in(Activity::kOptimizer));
}
double feed_us(const StepRow& r) { return static_cast<double>(r.in(Activity::kLoader) + r.in(Activity::kElsewhere)); }

using Values = std::vector<double>;

// By rank and step: a time of the row.
std::vector<Values> times(const StepTable& table, double (*of)(const StepRow&)) {
  std::vector<Values> out(table.ranks.size());
  for (std::size_t k = 0; k < out.size(); ++k)
    for (const auto* row : table.rows[k]) out[k].push_back(of(*row));
  return out;
}

// By rank and step: the median of the other ranks.
std::vector<Values> others(const std::vector<Values>& of) {
  std::vector<Values> out(of.size(), Values(of.empty() ? 0 : of[0].size()));
  const std::size_t n = of.size();
  Values sorted(n);
  for (std::size_t i = 0; n > 1 && i < of[0].size(); ++i) {
    for (std::size_t k = 0; k < n; ++k) sorted[k] = of[k][i];
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t k = 0; k < n; ++k) {
      const auto mine = static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), of[k][i]) - sorted.begin());
      const auto other = [&](std::size_t at) { return sorted[at < mine ? at : at + 1]; };
      out[k][i] = (other((n - 2) / 2) + other((n - 1) / 2)) / 2;
    }
  }
  return out;
}

// The largest median of whole blocks of `size` steps in [0, end).
double largest_block(const Values& values, std::size_t end, std::size_t size) {
  double out = 0;
  for (std::size_t from = 0; from + size <= std::min(end, values.size()); from += size) {
    out = std::max(out,
                   median({values.begin() + static_cast<std::ptrdiff_t>(from), values.begin() + static_cast<std::ptrdiff_t>(from + size)}));
  }
  return out;
}

// The time of the last n steps. A long step, such as one with an evaluation, counts as kLongStep usual ones: it makes no trouble older.
double span_us(const StepTable& table, std::size_t n) {
  Values total;
  for (std::size_t i = table.size() - n; i < table.size(); ++i) total.push_back(static_cast<double>(table.rows[0][i]->total_us));
  const double most = kLongStep * median(total);
  double out = 0;
  for (const double us : total) out += std::min(us, most);
  return out;
}

// True if the last n steps are enough for a verdict.
bool enough(const StepTable& table, std::size_t n) {
  if (n > table.size()) return false;
  const double us = span_us(table, n);
  if (us < kLeastUs) return false;
  return table.size() >= 2 * n || (n >= kLeastStepsAlone && us >= kLeastAloneUs);
}

struct Found {
  std::size_t rank = 0, since = 0, window = 0;  // positions in the table
  double level = 0;
};

std::string since_text(const StepTable& table, std::size_t since) {
  return since == 0 ? fmt::format("at least since step {}", table.steps[0]) : fmt::format("since step {}", table.steps[since]);
}

Verdict verdict_of(const StepTable& table, std::string code, std::size_t since) {
  Verdict out;
  out.code = std::move(code), out.state = Health::kSlow;
  out.since_step = table.steps[since];
  out.since_us = table.end_us[since];
  return out;
}

void set_rank(Verdict& v, const Rank& rank) {
  v.rank = rank.rank;
  v.host = host_of(rank);
}

// Sums of samples between two times of day.
struct Usage {
  double seconds = 0, runqueue_us = 0, faults = 0, pressure_cpu = 0;
};
std::optional<Usage> usage(const Process& p, std::int64_t from_us, std::int64_t to_us) {
  const runtime::SampleRow *first = nullptr, *last = nullptr;
  Usage out;
  for (const auto& s : p.samples.rows) {
    if (s.t_us < from_us || s.t_us > to_us) continue;
    if (first == nullptr) first = &s;
    last = &s;
    out.pressure_cpu = std::max(out.pressure_cpu, s.pressure_cpu);
  }
  if (first == nullptr || last->t_us <= first->t_us) return {};
  out.seconds = static_cast<double>(last->t_us - first->t_us) / 1e6;
  out.runqueue_us = static_cast<double>(last->runqueue_us - first->runqueue_us);
  out.faults = static_cast<double>(last->major_faults - first->major_faults);
  return out;
}

double cpu_pressure(const std::vector<Rank>& ranks) {
  Values out;
  for (const auto& r : ranks) {
    const auto& rows = r.process->samples.rows;
    if (!rows.empty()) out.push_back(rows.back().pressure_cpu);
  }
  return out.empty() ? 0 : *std::max_element(out.begin(), out.end());
}

// ---- a rank that computes longer ----

std::optional<Found> find_straggler(const StepTable& table, const std::vector<Values>& compute, const std::vector<Values>& other) {
  std::vector<Values> slower(compute.size());  // logarithm of the ratio, so that noise is as large on both sides
  for (std::size_t k = 0; k < compute.size(); ++k) {
    for (std::size_t i = 0; i < table.size(); ++i)
      slower[k].push_back(std::clamp(std::log(std::max(compute[k][i], 1.0) / std::max(other[k][i], 1.0)), -3.0, 3.0));
  }
  std::optional<Found> out;
  for (std::size_t k = 0; k < slower.size(); ++k) {
    const double sigma = noise(slower[k]);
    for (const auto n : kWindows) {
      if (!enough(table, n)) continue;
      const double level = median(last(slower[k], n));
      double least = std::max(std::log(1 + kLeastSlower), kDeviations * 1.25 * sigma / std::sqrt(static_cast<double>(n)));
      if (level < least || part_above(slower[k], table.size() - n, level / 2) < kMostSteps) continue;
      const auto since = change_point(slower[k], 0, level);
      if (since >= table.size()) continue;
      const auto earlier = slower[k].begin() + static_cast<std::ptrdiff_t>(since);
      const double usual = since < kWindows[0] ? 0 : std::max(median({slower[k].begin(), earlier}), 0.0);
      least = std::max({least, usual + std::log(1 + kLeastChange), kAboveBlocks * largest_block(slower[k], since, n)});
      // With two ranks the other one is this one's mirror, so its blocks show nothing new.
      for (std::size_t j = 0; j < slower.size() && slower.size() > 2; ++j)
        if (j != k && median(last(slower[j], n)) < level / 2)
          least = std::max(least, kAboveBlocks * largest_block(slower[j], table.size(), n));
      Values cost;
      for (std::size_t i = table.size() - n; i < table.size(); ++i)
        cost.push_back((compute[k][i] - other[k][i]) / std::max(static_cast<double>(table.rows[k][i]->total_us), 1.0));
      if (level < least || median(cost) < kLeastCost) continue;
      if (!out || level > out->level) out = Found{k, since, n, level};
      break;
    }
  }
  return out;
}

// True if the workers of the training may change: then its driver, too, records a part of the run.
bool is_elastic(const Run& run) {
  return std::any_of(run.processes.begin(), run.processes.end(), [](const Process& p) { return p.facts.role == "driver"; });
}

void explain_straggler(const Run& run, const StepTable& table, const Found& f, double excess_us, Verdict& v) {
  const auto& rank = table.ranks[f.rank];
  const auto& p = *rank.process;
  const auto from_us = table.end_us[f.since], to_us = table.end_us.back() + 1'500'000;
  const auto now = usage(p, from_us, to_us);
  const auto before = usage(p, table.end_us[0] - 60'000'000, from_us);
  Values idle, idle_before;  // time of each step's own computation in which the process used no CPU
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& row = *table.rows[f.rank][i];
    (i >= f.since ? idle : idle_before).push_back(std::max(compute_us(row) - static_cast<double>(row.cpu_us), 0.0));
  }
  Values idle_others;
  for (std::size_t k = 0; k < table.ranks.size(); ++k) {
    for (std::size_t i = f.since; k != f.rank && i < table.size(); ++i)
      idle_others.push_back(std::max(compute_us(*table.rows[k][i]) - static_cast<double>(table.rows[k][i]->cpu_us), 0.0));
  }
  const double idle_usual = idle_before.size() >= 8 ? median(idle_before) : median(idle_others);
  const bool on_cpu = p.facts.device.empty() || p.facts.device == "cpu";
  const bool counts_cpu = on_cpu && table.rows[f.rank].back()->cpu_us > 0;

  const double waits = now ? now->runqueue_us / 1e6 / now->seconds : 0;
  const double waited = before ? before->runqueue_us / 1e6 / before->seconds : 0;
  if (now && now->faults / now->seconds >= kFaultsPerSecond) {
    v.sentence += ": its memory is read back from disk";
    v.evidence.push_back(fmt::format("{:.0f} major page faults per second", now->faults / now->seconds));
    v.next = host_of(rank).empty() ? "free memory on its host" : "free memory on host " + shell_word(host_of(rank));
    return;
  }
  const bool shared = now && waits - waited >= kSharedRunqueue;
  const bool idles = counts_cpu && median(idle) - idle_usual >= kSharedPart * excess_us;
  if (now && waits - waited >= kSharedRunqueue / 3)
    v.evidence.push_back(fmt::format("it waits for a CPU {:.0f} % of the time, {:.0f} % before", waits * 100, waited * 100));
  if (idles && !shared) {
    v.sentence += ": it sleeps or waits there, or its CPU is limited";
    v.evidence.push_back(
        fmt::format("{} of a step's computation without a CPU, usually {}", duration_text(median(idle)), duration_text(idle_usual)));
    v.next = stack_command(rank);
    return;
  }
  if (shared) {
    v.sentence += ": its CPU is shared";
    if (counts_cpu)
      v.evidence.push_back(
          fmt::format("{} of a step's computation without a CPU, usually {}", duration_text(median(idle)), duration_text(idle_usual)));
    const auto host = shell_word(host_of(rank));
    const std::string command = "ps -eo pid,psr,pcpu,args --sort=-pcpu | head";
    v.next = hosts_of(table.ranks).size() == 1 ? command
             : is_elastic(run)                 ? "shoal drain " + host
                                               : fmt::format("ssh {} '{}'", host, command);
    return;
  }
  v.sentence += counts_cpu ? ": its computation itself takes longer" : "";
  if (counts_cpu) {
    Values cpu;
    for (std::size_t i = f.since; i < table.size(); ++i) cpu.push_back(static_cast<double>(table.rows[f.rank][i]->cpu_us));
    v.evidence.push_back(fmt::format("{} of CPU time per step: more work, or a slower CPU", duration_text(median(cpu))));
  }
  v.next = stack_command(rank);
}

// True if the rank's excess is its own: CPU time, or sleep. The rest is time in which other processes had its CPU. False if too few samples
// have come.
bool is_own_excess(const StepTable& table, const Found& f, double excess_us) {
  std::vector<Values> cpu(table.ranks.size()), idle(table.ranks.size());
  Values total;
  for (std::size_t i = f.since; i < table.size(); ++i) {
    total.push_back(static_cast<double>(table.rows[f.rank][i]->total_us));
    for (std::size_t k = 0; k < table.ranks.size(); ++k) {
      cpu[k].push_back(static_cast<double>(table.rows[k][i]->cpu_us));
      idle[k].push_back(std::max(compute_us(*table.rows[k][i]) - cpu[k].back(), 0.0));
    }
  }
  Values other_cpu, other_idle, other_wanted;  // other_wanted: the time per step in which a rank wants a CPU
  double wanted = 0;
  for (std::size_t k = 0; k < table.ranks.size(); ++k) {
    const auto used = usage(*table.ranks[k].process, table.end_us[f.since], table.end_us.back() + 1'500'000);
    if (!used) return false;
    const double per_step = used->runqueue_us / 1e6 / used->seconds * median(total);
    if (k == f.rank) {
      wanted = per_step;
    } else {
      other_wanted.push_back(per_step), other_cpu.push_back(median(cpu[k])), other_idle.push_back(median(idle[k]));
    }
  }
  const double more_cpu = median(cpu[f.rank]) - median(other_cpu);
  const double sleeps = median(idle[f.rank]) - median(other_idle) - std::max(wanted - median(other_wanted), 0.0);
  return more_cpu >= kSharedPart * excess_us || sleeps >= kSharedPart * excess_us;
}

// True if processes of every rank's host wait for CPUs.
bool share_cpus(const std::vector<Rank>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const Rank& r) {
    const auto& rows = r.process->samples.rows;
    return !rows.empty() && rows.back().pressure_cpu > kMostPressure;
  });
}

// Adds that the other ranks wait for this one, if they wait much longer: their exposed communication is not the network's fault.
void add_waits_of_others(const StepTable& table, std::size_t rank, std::size_t since, Verdict& v) {
  Values own, other;
  for (std::size_t k = 0; k < table.ranks.size(); ++k) {
    for (std::size_t i = since; i < table.size(); ++i) {
      (k == rank ? own : other).push_back(table.rows[k][i]->exposed_part());
    }
  }
  const double waits = median(std::move(own)), they_wait = median(std::move(other));
  if (they_wait - waits >= kLeastExposed)
    v.evidence.push_back(fmt::format("the other ranks wait for it {:.0f} % of each step; it waits {:.0f} %", they_wait * 100, waits * 100));
}

std::optional<std::size_t> add_straggler(const Run& run, const StepTable& table, std::vector<Verdict>& out) {
  const auto compute = times(table, compute_us);
  const auto other = others(compute);
  const auto found = find_straggler(table, compute, other);
  if (!found) return {};
  const auto& f = *found;
  Values mine, theirs, cost;
  for (std::size_t i = f.since; i < table.size(); ++i) {
    mine.push_back(compute[f.rank][i]);
    theirs.push_back(other[f.rank][i]);
    cost.push_back((compute[f.rank][i] - other[f.rank][i]) / std::max(static_cast<double>(table.rows[f.rank][i]->total_us), 1.0));
  }
  // Where all CPUs are shared, one rank gets less of them for a while, then another one.
  const double excess_us = median(mine) - median(theirs);
  if (share_cpus(table.ranks) && !is_own_excess(table, f, excess_us) && table.end_us.back() - table.end_us[f.since] < kLeastSharedUs)
    return {};
  auto v = verdict_of(table, "straggler", f.since);
  set_rank(v, table.ranks[f.rank]);
  v.cost = std::clamp(median(cost), 0.0, 1.0);
  v.sentence = fmt::format("{} computes {:.0f} % slower {}", name_of(table.ranks[f.rank], table.ranks), (std::exp(f.level) - 1) * 100,
                           since_text(table, f.since));
  v.evidence.push_back(
      fmt::format("{} of computation per step, the other ranks {}", duration_text(median(mine)), duration_text(median(theirs))));
  add_waits_of_others(table, f.rank, f.since, v);
  explain_straggler(run, table, f, excess_us, v);
  out.push_back(std::move(v));
  return f.rank;
}

// ---- a loader, or the program between steps ----

struct Part {
  std::size_t since = 0, window = 0;
  double level = 0, before = 0;
};
// The part of the steps that a series has at its end: at least `least` if it grew, `least_always` if it was so from the first step on.
std::optional<Part> find_part(const StepTable& table, const Values& part, double least, double least_always) {
  const double sigma = noise(part);
  for (const auto n : kWindows) {
    if (!enough(table, n)) continue;
    const double level = median(last(part, n));
    const double margin = kDeviations * 1.25 * sigma / std::sqrt(static_cast<double>(n));
    if (level < least || level < margin || part_above(part, part.size() - n, level / 2) < kMostSteps) continue;
    // The usual level: that of the first steps, or a lower one that a quarter of all steps keep.
    const double begin = median({part.begin(), part.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(part.size(), 8))});
    const double usual = std::min({begin, quantile(part, 0.25), level});
    const bool grew = level - usual >= std::max(kLeastGrowth, margin);
    const auto since = grew ? change_point(part, usual, level) : 0;
    if (since >= part.size()) continue;
    if (since == 0 && level < least_always) continue;
    if (since > 0 && level < kAboveBlocks * largest_block(part, since, n)) continue;
    return Part{since, n, level, since == 0 ? 0 : median({part.begin(), part.begin() + static_cast<std::ptrdiff_t>(since)})};
  }
  return {};
}

double median_of_last(const StepTable& table, std::size_t rank, std::size_t n, double (*of)(const StepRow&)) {
  Values out;
  for (std::size_t i = table.size() - n; i < table.size(); ++i) out.push_back(of(*table.rows[rank][i]));
  return median(std::move(out));
}

void describe_loader(const StepTable& table, std::size_t rank, const Part& found, const std::string& who, Verdict& v) {
  const auto load =
      median_of_last(table, rank, found.window, [](const StepRow& r) { return static_cast<double>(r.in(Activity::kLoader)); });
  const auto out =
      median_of_last(table, rank, found.window, [](const StepRow& r) { return static_cast<double>(r.in(Activity::kElsewhere)); });
  const bool in_loader = load >= out;
  v.cost = std::clamp(found.level, 0.0, 1.0);
  v.sentence = fmt::format("{} {:.0f} % of {} {}", in_loader ? "the data loader takes" : "the program outside of the training step takes",
                           found.level * 100, who, since_text(table, found.since));
  v.evidence.push_back(
      fmt::format("{} per step in the data loader, {} in other code of the loop", duration_text(load), duration_text(out)));
  if (found.since > 0) v.evidence.push_back(fmt::format("{:.0f} % before step {}", found.before * 100, v.since_step));
  v.next = in_loader ? "more workers in the data loader, or data on a faster disk" : stack_command(table.ranks[rank]);
}

void add_loader(const StepTable& table, std::vector<Verdict>& out) {
  const auto feed = times(table, feed_us);
  std::vector<Values> part(feed.size());
  Values all;
  for (std::size_t i = 0; i < table.size(); ++i) {
    Values parts;
    for (std::size_t k = 0; k < feed.size(); ++k) {
      parts.push_back(feed[k][i] / std::max(static_cast<double>(table.rows[k][i]->total_us), 1.0));
      part[k].push_back(parts.back());
    }
    all.push_back(quantile(std::move(parts), 0.25));  // low, so that one slow rank of two does not speak for all
  }
  const auto load_us = median_of_last(table, 0, std::min<std::size_t>(table.size(), 8),
                                      [](const StepRow& r) { return static_cast<double>(r.in(Activity::kLoader)); });
  const auto out_us = median_of_last(table, 0, std::min<std::size_t>(table.size(), 8),
                                     [](const StepRow& r) { return static_cast<double>(r.in(Activity::kElsewhere)); });
  // The rank whose last part is nearest to that of all ranks stands for all in the verdict.
  std::size_t middle = 0;
  for (std::size_t k = 0; k < part.size(); ++k)
    if (std::abs(part[k].back() - all.back()) < std::abs(part[middle].back() - all.back())) middle = k;
  if (const auto found = find_part(table, all, kLeastLoader, load_us >= out_us ? kLeastLoader : kLeastProgram)) {
    if (median_of_last(table, middle, found->window, feed_us) < kLeastPartUs) return;
    auto v = verdict_of(table, "slow_loader", found->since);
    describe_loader(table, middle, *found, table.ranks.size() > 1 ? "each step of all ranks" : "each step", v);
    if (table.ranks.size() > 1 && load_us < out_us)
      v.evidence.push_back("a collective that the program calls itself counts there: one slow rank may hold up all of them");
    out.push_back(std::move(v));
    return;
  }
  if (table.ranks.size() < 2) return;
  const auto other = others(part);
  std::optional<Part> worst;
  std::size_t rank = 0;
  for (std::size_t k = 0; k < part.size(); ++k) {
    Values above;
    for (std::size_t i = 0; i < table.size(); ++i) above.push_back(std::max(part[k][i] - other[k][i], 0.0));
    const auto found = find_part(table, above, kLeastGrowth, kLeastGrowth);
    if (!found || median_of_last(table, k, found->window, feed_us) < kLeastPartUs || (worst && worst->level >= found->level)) continue;
    worst = found;
    rank = k;
  }
  if (!worst) return;
  auto v = verdict_of(table, "slow_loader", worst->since);
  set_rank(v, table.ranks[rank]);
  auto shown = *worst;
  shown.level = median(last(part[rank], worst->window));
  shown.before = median({part[rank].begin(), part[rank].begin() + static_cast<std::ptrdiff_t>(worst->since)});
  describe_loader(table, rank, shown, fmt::format("each step on {}", name_of(table.ranks[rank], table.ranks)), v);
  v.cost = std::clamp(worst->level, 0.0, 1.0);
  v.evidence.push_back(fmt::format("{:.0f} % of the step on the other ranks", median(last(other[rank], worst->window)) * 100));
  add_waits_of_others(table, rank, table.size() - worst->window, v);
  out.push_back(std::move(v));
}

// ---- waits that no computation hides ----

// The unit with the longest waits in the detailed steps since `since_step`.
std::string longest_wait(const StepTable& table, std::uint64_t since_step) {
  std::map<std::pair<Activity, std::string>, Values> waits;
  for (const auto& r : table.ranks) {
    for (const auto& row : r.process->spans.rows) {
      if (row.step < since_step) continue;
      std::map<std::pair<Activity, std::string>, double> sums;
      for (const auto& s : row.spans)
        if (is_wait(s.activity)) sums[{s.activity, r.process->unit_name(s.unit)}] += static_cast<double>(s.length_us);
      for (const auto& [key, us] : sums) waits[key].push_back(us);
    }
  }
  double most = 0;
  std::string out;
  for (const auto& [key, values] : waits) {
    const double us = median(values);
    if (us <= most) continue;
    most = us;
    out = fmt::format("the longest wait is {} per step for {} of {}", duration_text(us),
                      key.first == Activity::kGather   ? "parameters"
                      : key.first == Activity::kReduce ? "gradients"
                                                       : "the window",
                      key.second.empty() ? "the model" : key.second);
  }
  return out;
}

void add_exposed(const StepTable& table, std::vector<Verdict>& out) {
  if (table.ranks.size() < 2 || cpu_pressure(table.ranks) > kMostPressure) return;
  // Takes, in each step, the rank with the smallest share of waits. A slow rank makes others wait, but not itself. So a wait that even this
  // rank has comes from the communication.
  Values part, exposed;
  for (std::size_t i = 0; i < table.size(); ++i) {
    double least = 2, of = 0;
    for (std::size_t k = 0; k < table.ranks.size(); ++k) {
      const auto& row = *table.rows[k][i];
      const double share = row.exposed_part();
      if (share >= least) continue;
      least = share;
      of = static_cast<double>(row.exposed_us());
    }
    part.push_back(least);
    exposed.push_back(of);
  }
  const auto found = find_part(table, part, kLeastExposed, kLeastExposed);
  if (!found || median(last(exposed, found->window)) < kLeastPartUs) return;
  Values cpu;
  for (std::size_t k = 0; k < table.ranks.size(); ++k) {
    const auto& device = table.ranks[k].process->facts.device;
    if (!device.empty() && device != "cpu") continue;
    for (std::size_t i = table.size() - found->window; i < table.size(); ++i) {
      const auto& row = *table.rows[k][i];
      if (row.cpu_us > 0 && compute_us(row) > 0) cpu.push_back(static_cast<double>(row.cpu_us) / compute_us(row));
    }
  }
  if (!cpu.empty() && median(cpu) < kLeastCpu) return;
  auto v = verdict_of(table, "exposed_communication", found->since);
  v.cost = found->level;
  v.sentence =
      fmt::format("all ranks wait for communication {:.0f} % of each step {}", found->level * 100, since_text(table, found->since));
  v.evidence.push_back(fmt::format("{} per step on the rank that waits least", duration_text(median(last(exposed, found->window)))));
  if (found->since > 0) v.evidence.push_back(fmt::format("{:.0f} % before step {}", found->before * 100, v.since_step));
  if (auto wait = longest_wait(table, v.since_step); !wait.empty()) v.evidence.push_back(std::move(wait));
  v.next = hosts_of(table.ranks).size() > 1 ? "shoal doctor" : "larger units or batches, so that computation hides the communication";
  out.push_back(std::move(v));
}

}  // namespace

void find_slow(const Run& run, const StepTable& table, std::vector<Verdict>& out) {
  if (table.size() < kWindows[0]) return;
  Values total;
  for (const auto* row : table.rows[0]) total.push_back(static_cast<double>(row->total_us));
  const double step_us = median(last(total, 64));
  const auto straggler = table.ranks.size() > 1 && step_us >= kLeastComputedUs ? add_straggler(run, table, out) : std::nullopt;
  if (step_us < kLeastStepUs) return;
  add_loader(table, out);
  if (!straggler) add_exposed(table, out);
}

}  // namespace shoal::scheduler::runs
