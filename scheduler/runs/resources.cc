// Memory and disks near their limits, disks that became slow, clocks that jumped.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::SampleRow;

namespace {

// Memory is short if less than this fraction of the host's memory is free, and less than this size: a twentieth of a large host's memory is
// room enough.
constexpr double kLeastFreePart = 0.05, kLeastFreeBytes = 4e9;
// A single sample suffices below this fraction of the limit. Otherwise two are needed, since a short peak is over before somebody acts.
constexpr double kAtOnce = 0.5;
// A forecast needs this many samples with growth, and is given only shortly before the end: programs grow at their begin, and stop.
constexpr std::size_t kForecastSamples = 6, kMostForecastSamples = 10;
constexpr double kForecastSeconds = 60, kForecastFreePart = 0.3, kSteadyGrowth = 0.8;

constexpr std::int64_t kLeastDiskBytes = 256 << 20;  // below it, Shoal's own logs stop to grow
constexpr std::int64_t kSmallDisk = 4;               // a disk below four times that size is full when less than a quarter is free

// A save is slow if it takes this many times as long as the earlier ones, and so much longer.
constexpr double kTimesSlower = 4, kLeastExcessUs = 1'000'000;
constexpr std::size_t kLeastEarlier = 2;
// Without earlier saves, a save is slow if it takes this long and writes less than this per second, or processes wait for the disk this
// often (percent).
constexpr double kSlowAloneUs = 5'000'000, kSlowBytesPerSecond = 10e6, kSlowPressure = 20;
// A save lacks CPU, not disk, if processes wait for CPUs at least this often (percent) and for disks at most this often, and if its process
// ran or wanted to run for this fraction of the time.
constexpr double kSharedCpu = 25, kSomePressure = 10, kBusyPart = 0.3;

constexpr std::int64_t kClockShownUs = 600'000'000;

// The step that process `p` was in at the time of day `t_us`.
std::uint64_t step_at(const Process& p, std::int64_t t_us) {
  std::uint64_t out = 0;
  for (const auto& row : p.steps.rows)
    if (row.end_us <= t_us) out = std::max(out, row.step + 1);
  return out;
}

Verdict verdict_of(const Rank& r, const char* code) {
  Verdict v;
  v.code = code, v.state = Health::kSlow, v.rank = r.rank, v.host = host_of(r);
  return v;
}

std::string on_host(const Rank& r) { return host_of(r).empty() ? "its host" : "host " + host_of(r); }

// ---- memory ----

double growth(const Process& p) {  // bytes per second; 0 unless it is steady
  std::vector<double> t, rss;
  for (auto s = p.samples.rows.rbegin(); s != p.samples.rows.rend() && t.size() < kMostForecastSamples && s->samples == 1; ++s) {
    t.push_back(static_cast<double>(s->t_us) / 1e6);
    rss.push_back(static_cast<double>(s->rss));
  }
  if (t.size() < kForecastSamples) return 0;
  std::size_t grows = 0;
  for (std::size_t i = 1; i < t.size(); ++i) grows += rss[i] < rss[i - 1];  // the samples go from new to old
  if (static_cast<double>(grows) < kSteadyGrowth * static_cast<double>(t.size() - 1)) return 0;
  const double last = (rss[0] - rss[1]) / std::max(t[0] - t[1], 1e-3);
  std::reverse(t.begin(), t.end());
  std::reverse(rss.begin(), rss.end());
  const double usual = std::max(slope(t, rss), 0.0);
  return last < usual / 2 ? 0 : usual;  // 0 if the growth has nearly stopped
}

// The first sample of the growth at the end, in which each sample grows at half the rate of the last ones, or faster.
std::deque<SampleRow>::const_iterator growth_begin(const std::deque<SampleRow>& rows) {
  const auto from = rows.end() - static_cast<std::ptrdiff_t>(std::min(rows.size(), std::size_t{3}));
  const double usual =
      static_cast<double>(rows.back().rss - from->rss) / static_cast<double>(std::max<std::int64_t>(rows.back().t_us - from->t_us, 1));
  auto begin = std::prev(rows.end());
  while (begin != rows.begin() && begin->t_us > std::prev(begin)->t_us && usual > 0) {
    if (static_cast<double>(begin->rss - std::prev(begin)->rss) / static_cast<double>(begin->t_us - std::prev(begin)->t_us) < usual / 2)
      break;
    --begin;
  }
  return begin;
}

void find_memory(const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  std::map<std::string, std::vector<Rank>> hosts;
  for (const auto& r : ranks)
    if (!r.process->samples.rows.empty() && r.process->samples.rows.back().host_total > 0) hosts[host_of(r)].push_back(r);
  for (const auto& [host, there] : hosts) {
    const auto newest = std::max_element(there.begin(), there.end(), [](const Rank& a, const Rank& b) {
      return a.process->samples.rows.back().t_us < b.process->samples.rows.back().t_us;
    });
    const auto& rows = newest->process->samples.rows;
    const double total = static_cast<double>(rows.back().host_total), free = static_cast<double>(rows.back().host_free);
    const double least = std::min(kLeastFreePart * total, kLeastFreeBytes);
    auto low = rows.end();  // the first of the samples at the end that are below the limit
    while (low != rows.begin() && static_cast<double>(std::prev(low)->host_free) < least) --low;

    const auto grown = [](const Rank& r) {
      const auto& of = r.process->samples.rows;
      return of.back().rss - of[of.size() - std::min(of.size(), kForecastSamples)].rss;
    };
    const auto by_growth = [&](const Rank& a, const Rank& b) {
      return std::make_pair(grown(a), a.process->samples.rows.back().rss) < std::make_pair(grown(b), b.process->samples.rows.back().rss);
    };
    const auto& largest = *std::max_element(there.begin(), there.end(), by_growth);
    auto v = verdict_of(largest, "memory");
    const auto rss = static_cast<double>(largest.process->samples.rows.back().rss);
    double faster = 0;
    for (const auto& r : there) faster += growth(*r.process);
    const auto& of = largest.process->samples.rows;
    const auto begin = growth_begin(of);
    if (rows.end() - low >= 2 || free < kAtOnce * least) {
      // The trouble began with the rank's growth if that explains most of the lost memory, else with the first low sample.
      const bool grew = static_cast<double>(of.back().rss - begin->rss) > static_cast<double>(begin->host_free - of.back().host_free) / 2 &&
                        begin->t_us < low->t_us;
      const auto& since = grew ? *begin : *low;
      v.since_step = since.step, v.since_us = since.t_us;
      v.sentence = fmt::format("memory of {} is nearly full{}: {} of {} are free", on_host(largest),
                               grew ? fmt::format(", and {} grows since step {}", name_of(largest, ranks), v.since_step)
                                    : fmt::format(" since step {}", v.since_step),
                               bytes_text(free), bytes_text(total));
    } else if (faster > 0 && free < kForecastFreePart * total && free / faster < kForecastSeconds) {
      v.since_step = begin->step, v.since_us = begin->t_us;
      v.sentence =
          fmt::format("memory of {} ends in about {}: {} grows by {} per second since step {}", on_host(largest),
                      duration_text(free / faster * 1e6), name_of(largest, ranks), bytes_text(growth(*largest.process)), v.since_step);
      v.evidence.push_back(fmt::format("{} of {} are free", bytes_text(free), bytes_text(total)));
    } else {
      continue;
    }
    v.evidence.push_back(fmt::format("{} has {}", name_of(largest, ranks), bytes_text(rss)));
    if (rows.back().pressure_memory > 0) v.evidence.push_back(fmt::format("memory pressure {:.0f} %", rows.back().pressure_memory));
    v.next = "a smaller batch, smaller units, or more workers";
    out.push_back(std::move(v));
    return;
  }
}

// ---- disks ----

void find_full_disk(const Run& run, const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  // A disk without a single block left takes no sample either, so the reader's own look counts, too. Small file systems count as full with
  // fewer free bytes.
  const bool known = run.disk_total > 0;
  const auto least = known ? std::min(kLeastDiskBytes, run.disk_total / kSmallDisk) : kLeastDiskBytes;
  const bool full_now = run.state == RunState::kRunning && known && run.disk_free < least;
  for (const auto& r : ranks) {
    const auto& p = *r.process;
    const Event* stopped = nullptr;
    for (const auto& e : p.events.rows) {
      if (e.kind == "recording_stopped") stopped = &e;
      if (e.kind == "recording_goes_on") stopped = nullptr;
    }
    const auto& samples = p.samples.rows;
    // A row without the key has zero, too. So zero free bytes count only if some row had free bytes.
    const bool any = std::any_of(samples.begin(), samples.end(), [](const SampleRow& s) { return s.disk_free > 0; });
    const bool full = any && samples.back().disk_free < least;
    if (stopped == nullptr && !full && !full_now) continue;
    auto v = verdict_of(r, "full_disk");
    if (full) {
      auto low = samples.end();
      while (low != samples.begin() && std::prev(low)->disk_free < least) --low;
      v.since_step = low->step, v.since_us = low->t_us;
    }
    if (stopped != nullptr && (!full || stopped->t_us < v.since_us)) v.since_us = stopped->t_us, v.since_step = step_at(p, stopped->t_us);
    if (v.since_step == 0) v.since_step = p.steps.rows.empty() ? reached_step(r, ranks) + 1 : p.steps.rows.back().step + 1;
    const auto free = full_now ? run.disk_free : full ? samples.back().disk_free : -1;
    v.rank.reset();  // the disk is the host's, so the verdict names no rank
    v.sentence = fmt::format("the disk of the run's folder is full on {} since step {}: {}", on_host(r), v.since_step,
                             stopped != nullptr || free == 0 ? "recording has stopped, and checkpoints may fail"
                                                             : "recording stops soon, and checkpoints may fail");
    if (free >= 0) v.evidence.push_back(fmt::format("{} are free", bytes_text(static_cast<double>(free))));
    if (const auto cause = stopped == nullptr ? std::string() : text_in(*stopped, "cause"); !cause.empty()) v.evidence.push_back(cause);
    v.next = "df -h " + shell_word(run.path);
    out.push_back(std::move(v));
    return;
  }
}

// The time that a rank itself took for a save or load: it may have waited for the other ranks' disks.
double own_us(const Event& e) { return static_cast<double>(e.fields.contains("own_us") ? number_in(e, "own_us") : number_in(e, "us")); }

// True if the process was slow between two times of day for lack of a CPU: other processes computed, it ran or wanted to, and hardly any
// process waited for a disk.
bool lacked_cpu(const Process& p, std::int64_t from_us, std::int64_t to_us) {
  const auto& rows = p.samples.rows;
  if (rows.empty()) return false;
  auto last = std::find_if(rows.begin(), rows.end(), [&](const SampleRow& s) { return s.t_us >= to_us; });
  if (last == rows.end()) --last;
  auto first = last;
  while (first != rows.begin() && first->t_us > from_us) --first;
  double cpu = last->pressure_cpu, io = last->pressure_io;
  for (auto s = first; s != last; ++s) cpu = std::max(cpu, s->pressure_cpu), io = std::max(io, s->pressure_io);
  if (cpu < kSharedCpu || io > kSomePressure) return false;
  const auto inside_us = std::min(last->t_us, to_us) - from_us;
  if (inside_us <= 0) return true;  // the samples do not cover the save yet
  const auto outside_us = last->t_us - first->t_us - inside_us;
  const auto busy_us = last->cpu_us - first->cpu_us + last->runqueue_us - first->runqueue_us - outside_us;
  return static_cast<double>(busy_us) > kBusyPart * static_cast<double>(inside_us);
}

struct SlowDisk {
  double excess_us = 0;  // the time beyond the usual time
  Verdict verdict;
};

// The verdict on a save that is under way.
std::optional<SlowDisk> slow_save_now(const Rank& r, const std::vector<const Event*>& all, const std::vector<Rank>& ranks) {
  const auto& p = *r.process;
  if (p.life != Life::kAlive || !p.live || p.live->activity != Activity::kSave || p.held_polls < 2) return {};
  std::vector<double> took;
  for (const auto* e : all) took.push_back(own_us(*e));
  const double held = held_us(p), usual = median(took);
  const double pressure = p.samples.rows.empty() ? 0 : p.samples.rows.back().pressure_io;
  const bool known = took.size() >= kLeastEarlier;
  if (known ? held < kTimesSlower * usual || held - usual < kLeastExcessUs / 2 || lacked_cpu(p, p.live->since_us, p.live->beat_us)
            : held < kSlowAloneUs || pressure < kSlowPressure)
    return {};
  SlowDisk out{held - usual, verdict_of(r, "slow_disk")};
  auto& v = out.verdict;
  v.since_step = p.live->step, v.since_us = p.live->since_us;
  v.sentence = fmt::format("the disk of {} is slow: a save of {} in step {} has run for {}", on_host(r), name_of(r, ranks), v.since_step,
                           duration_text(held));
  if (known) v.evidence.push_back(fmt::format("earlier ones took {}", duration_text(usual)));
  if (pressure > 0) v.evidence.push_back(fmt::format("processes of the host wait for disks {:.0f} % of the time", pressure));
  return out;
}

// The verdict on the last save or load that has ended.
std::optional<SlowDisk> slow_event(const Rank& r, const std::vector<const Event*>& all, const std::vector<Rank>& ranks) {
  if (all.empty()) return {};
  const auto& last = *all.back();
  std::vector<double> earlier;  // microseconds per byte
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    if (const auto bytes = number_in(*all[i], "bytes"); bytes > 0) earlier.push_back(own_us(*all[i]) / static_cast<double>(bytes));
  const double us = own_us(last), bytes = static_cast<double>(number_in(last, "bytes"));
  const bool known = earlier.size() >= kLeastEarlier && bytes > 0;
  const double usual = known ? median(earlier) * bytes : 0;
  if (known
          ? us < kTimesSlower * usual || us - usual < kLeastExcessUs || lacked_cpu(*r.process, last.t_us - number_in(last, "us"), last.t_us)
          : us < kSlowAloneUs || bytes / (us / 1e6) > kSlowBytesPerSecond)
    return {};
  SlowDisk out{us - usual, verdict_of(r, "slow_disk")};
  auto& v = out.verdict;
  v.since_us = last.t_us - number_in(last, "us");
  v.since_step = static_cast<std::uint64_t>(std::max<std::int64_t>(number_in(last, "step"), 0));
  v.sentence = fmt::format("the disk of {} is slow: a {} of {} in step {} took {}", on_host(r), last.kind, name_of(r, ranks), v.since_step,
                           duration_text(us));
  v.evidence.push_back(fmt::format("{} in {}, {} per second", bytes_text(bytes), duration_text(us), bytes_text(bytes / (us / 1e6))));
  if (known) v.evidence.push_back(fmt::format("usually {} for as much", duration_text(usual)));
  return out;
}

void find_slow_disk(const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  std::optional<SlowDisk> worst;
  for (const auto& r : ranks) {
    for (const char* const kind : {"save", "load"}) {
      std::vector<const Event*> all;
      for (const auto& e : r.process->events.rows)
        if (e.kind == kind && number_in(e, "us") > 0) all.push_back(&e);
      auto found = *kind == 's' ? slow_save_now(r, all, ranks) : std::nullopt;
      if (!found) found = slow_event(r, all, ranks);
      if (found && (!worst || found->excess_us > worst->excess_us)) worst = std::move(found);
    }
  }
  if (!worst) return;
  worst->verdict.next = "iostat -x 1";
  out.push_back(std::move(worst->verdict));
}

// The step in which the time of day advanced by about `us` more than the step took.
std::uint64_t jump_step(const Process& p, double us) {
  const auto& rows = p.steps.rows;
  for (std::size_t i = rows.size(); i-- > 1;) {
    const double extra = static_cast<double>(rows[i].end_us - rows[i - 1].end_us - rows[i].total_us);
    if (std::abs(extra - us) < std::abs(us) / 2) return rows[i].step;
  }
  return rows.empty() ? 0 : rows.back().step + 1;
}

void find_clock_jump(const std::vector<Rank>& ranks, std::int64_t now_us, std::vector<Verdict>& out) {
  for (const auto& r : ranks) {
    for (auto e = r.process->events.rows.rbegin(); e != r.process->events.rows.rend(); ++e) {
      if (e->kind != "clock" || std::abs(now_us - e->t_us) > kClockShownUs) continue;
      auto v = verdict_of(r, "clock_jump");
      const auto us = number_in(*e, "us");
      v.state = Health::kOk;  // no trouble, since durations do not depend on the time of day
      v.since_us = e->t_us;
      v.since_step = jump_step(*r.process, static_cast<double>(us));
      v.sentence = fmt::format("the clock of {} jumped {} by {} in step {}", on_host(r), us < 0 ? "back" : "forward",
                               duration_text(std::abs(static_cast<double>(us))), v.since_step);
      v.evidence.push_back("times of day before and behind it do not compare; durations do");
      v.next = "timedatectl";
      out.push_back(std::move(v));
      return;
    }
  }
}

}  // namespace

void find_resources(const Run& run, const std::vector<Rank>& ranks, std::int64_t now_us, std::vector<Verdict>& out) {
  find_memory(ranks, out);
  find_full_disk(run, ranks, out);
  find_slow_disk(ranks, out);
  find_clock_jump(ranks, now_us, out);
}

}  // namespace shoal::scheduler::runs
