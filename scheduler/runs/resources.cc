// Memory and disks near their limits, disks that became slow, clocks that jumped.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::SampleRow;

namespace {

// Memory is near its limit below this part of the host's, and below this size: large hosts have room enough below a twentieth.
constexpr double kLeastFreePart = 0.05, kLeastFreeBytes = 4e9;
// A single sample suffices below this part of the limit; else two, as a short peak is over before somebody acts.
constexpr double kAtOnce = 0.5;
// A forecast needs this many samples with growth, and is given only shortly before the end: programs grow at their begin, and stop.
constexpr std::size_t kForecastSamples = 6, kMostForecastSamples = 10;
constexpr double kForecastSeconds = 60, kForecastFreePart = 0.3, kSteadyGrowth = 0.8;

constexpr std::int64_t kLeastDiskBytes = 256 << 20;  // below it, Shoal's own logs stop to grow

// A save is slow if it takes this many times as long as the earlier ones, and so much longer.
constexpr double kTimesSlower = 4, kLeastExcessUs = 1'000'000;
constexpr std::size_t kLeastEarlier = 2;
// Without earlier ones: so long, and so little per second or so much pressure.
constexpr double kSlowAloneUs = 5'000'000, kSlowBytesPerSecond = 10e6, kSlowPressure = 20;
constexpr double kSomePressure = 10;  // percent; while a save runs

constexpr std::int64_t kClockShownUs = 600'000'000;

// The step during which the process was at that time of day.
std::uint64_t step_at(const Process& p, std::int64_t t_us) {
  std::uint64_t out = 0;
  for (const auto& row : p.steps.rows)
    if (row.end_us <= t_us) out = std::max(out, row.step + 1);
  return out;
}

std::int64_t number(const Event& e, const char* key) {
  const auto at = e.fields.find(key);
  return at == e.fields.end() || !at->is_number() ? 0 : static_cast<std::int64_t>(std::clamp(at->get<double>(), -9e15, 9e15));
}

std::string text(const Event& e, const char* key) {
  const auto at = e.fields.find(key);
  return at == e.fields.end() || !at->is_string() ? "" : at->get<std::string>();
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
  for (std::size_t i = 1; i < t.size(); ++i) grows += rss[i] < rss[i - 1];  // from new to old
  if (static_cast<double>(grows) < kSteadyGrowth * static_cast<double>(t.size() - 1)) return 0;
  std::reverse(t.begin(), t.end());
  std::reverse(rss.begin(), rss.end());
  return std::max(slope(t, rss), 0.0);
}

// The first sample of the growth that goes on at the end: each adds half of what the last ones do, or more.
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
      // Since the growth that has filled it, if a rank's growth explains most of that.
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
  for (const auto& r : ranks) {
    const auto& p = *r.process;
    const Event* stopped = nullptr;
    for (const auto& e : p.events.rows) {
      if (e.kind == "recording_stopped") stopped = &e;
      if (e.kind == "recording_goes_on") stopped = nullptr;
    }
    const auto& samples = p.samples.rows;
    // Zero is what a row without the key has, unless there was space before.
    const bool known = std::any_of(samples.begin(), samples.end(), [](const SampleRow& s) { return s.disk_free > 0; });
    const bool full = known && samples.back().disk_free < kLeastDiskBytes;
    if (stopped == nullptr && !full) continue;
    auto v = verdict_of(r, "full_disk");
    if (full) {
      auto low = samples.end();
      while (low != samples.begin() && std::prev(low)->disk_free < kLeastDiskBytes) --low;
      v.since_step = low->step, v.since_us = low->t_us;
    }
    if (stopped != nullptr && (!full || stopped->t_us < v.since_us)) v.since_us = stopped->t_us, v.since_step = step_at(p, stopped->t_us);
    v.sentence = fmt::format(
        "the disk of the run's folder is full on {} since step {}: {}", on_host(r), v.since_step,
        stopped != nullptr ? "recording has stopped, and checkpoints may fail" : "recording stops soon, and checkpoints may fail");
    if (full) v.evidence.push_back(fmt::format("{} are free", bytes_text(static_cast<double>(samples.back().disk_free))));
    if (const auto cause = stopped == nullptr ? std::string() : text(*stopped, "cause"); !cause.empty()) v.evidence.push_back(cause);
    v.next = "df -h " + shell_word(run.path);
    out.push_back(std::move(v));
    return;
  }
}

void find_slow_disk(const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  for (const auto& r : ranks) {
    const auto& p = *r.process;
    const double pressure = p.samples.rows.empty() ? 0 : p.samples.rows.back().pressure_io;
    for (const char* const kind : {"save", "load"}) {
      std::vector<const Event*> all;
      for (const auto& e : p.events.rows)
        if (e.kind == kind && number(e, "us") > 0) all.push_back(&e);
      std::vector<double> earlier;  // microseconds per byte
      std::vector<double> took;
      for (std::size_t i = 0; i + 1 < all.size(); ++i) took.push_back(static_cast<double>(number(*all[i], "us")));
      for (std::size_t i = 0; i + 1 < all.size(); ++i)
        if (const auto bytes = number(*all[i], "bytes"); bytes > 0)
          earlier.push_back(static_cast<double>(number(*all[i], "us")) / static_cast<double>(bytes));
      const char* const what = *kind == 's' ? "a save" : "a load";

      // One that runs.
      const bool runs = *kind == 's' && p.life == Life::kAlive && p.live && p.live->activity == Activity::kSave && p.held_polls >= 2;
      if (runs) {
        if (!all.empty()) took.push_back(static_cast<double>(number(*all.back(), "us")));
        const double held = held_us(p);
        const bool known = took.size() >= kLeastEarlier;
        const double usual = median(took);
        if (known
                ? held < kTimesSlower * usual || held - usual < kLeastExcessUs / 2 || (!p.samples.rows.empty() && pressure < kSomePressure)
                : held < kSlowAloneUs || pressure < kSlowPressure)
          continue;
        auto v = verdict_of(r, "slow_disk");
        v.since_step = p.live->step + 1, v.since_us = p.live->since_us;
        v.sentence = fmt::format("the disk of {} is slow: a save of {} runs for {} in step {}", on_host(r), name_of(r, ranks),
                                 duration_text(held), v.since_step);
        if (known) v.evidence.push_back(fmt::format("earlier ones took {}", duration_text(usual)));
        if (pressure > 0) v.evidence.push_back(fmt::format("processes of the host wait for disks {:.0f} % of the time", pressure));
        v.next = "iostat -x 1";
        out.push_back(std::move(v));
        return;
      }
      if (all.empty()) continue;
      const auto& last = *all.back();
      const auto us = static_cast<double>(number(last, "us")), bytes = static_cast<double>(number(last, "bytes"));
      const bool known = earlier.size() >= kLeastEarlier && bytes > 0;
      const double usual = known ? median(earlier) * bytes : 0;
      if (known ? us < kTimesSlower * usual || us - usual < kLeastExcessUs : us < kSlowAloneUs || bytes / (us / 1e6) > kSlowBytesPerSecond)
        continue;
      auto v = verdict_of(r, "slow_disk");
      v.since_us = last.t_us;
      v.since_step = static_cast<std::uint64_t>(std::max<std::int64_t>(number(last, "step"), 0));
      v.sentence = fmt::format("the disk of {} is slow: {} of {} in step {} took {}", on_host(r), what, name_of(r, ranks), v.since_step,
                               duration_text(us));
      v.evidence.push_back(fmt::format("{} in {}, {} per second", bytes_text(bytes), duration_text(us), bytes_text(bytes / (us / 1e6))));
      if (known) v.evidence.push_back(fmt::format("usually {} for as much", duration_text(usual)));
      v.next = "iostat -x 1";
      out.push_back(std::move(v));
      return;
    }
  }
}

// The step in which the time of day changed by so much more than the step took.
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
      const auto us = number(*e, "us");
      v.state = Health::kOk;  // durations do not depend on it
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
