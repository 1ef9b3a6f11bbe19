// Charts: steps, metrics and memory, in buckets.
#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "scheduler/runs/views/event_text.h"
#include "scheduler/runs/views/parts.h"

namespace shoal::scheduler::runs::views {

using runtime::Activity;
using runtime::key_of;
using runtime::kNumActivities;
using runtime::StepRow;

namespace {

constexpr std::size_t kMostMarks = 200;

// The buckets of a chart: `width` numbers each, aligned so that a bucket stays the same while the run goes on.
struct Buckets {
  std::int64_t first = 0, width = 1;
  std::int64_t of(std::int64_t at) const { return (at - first) / width; }
};
// The narrowest width, a power of two, with which `points` buckets cover the range.
Buckets buckets_over(std::int64_t first, std::int64_t last, std::int64_t points) {
  Buckets out{first, 1};
  while (out.of(last) >= points) out.width *= 2;
  return out;
}

// A chart's cursor has its buckets, the first one that may still change, and the files' readings.
struct ChartCursor {
  std::int64_t first = 0, width = 0, next = 0;
  std::uint64_t readings = 0;
  std::string text() const { return fmt::format("{}.{}.{}.{}", first, width, next, readings); }
};
std::optional<ChartCursor> chart_cursor(const std::string& text) {
  ChartCursor out;
  std::int64_t readings = 0;
  const char *at = text.data(), *end = text.data() + text.size();
  for (std::int64_t* part : {&out.first, &out.width, &out.next, &readings}) {
    const auto [stop, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || *part < 0) return std::nullopt;
    const bool last = part == &readings;
    if (last ? stop != end : stop == end || *stop != '.') return std::nullopt;
    at = last ? stop : stop + 1;
  }
  out.readings = static_cast<std::uint64_t>(readings);
  return out;
}

// Where a chart begins, by the request's cursor: bucket 0 with `reset`, or the first bucket that may have changed.
struct Continued {
  std::int64_t from = 0;
  bool reset = true;
};
Continued continued(const Query& query, const Buckets& buckets, std::uint64_t readings) {
  const auto cursor = chart_cursor(query.text("cursor"));
  if (!cursor || cursor->first != buckets.first || cursor->width != buckets.width || cursor->readings != readings) return {};
  return {cursor->next, false};
}

// Microseconds of rows, added up.
struct PlaceSums {
  std::int64_t steps = 0, end_us = 0, total_us = 0, longest_us = 0;
  std::array<std::int64_t, kNumActivities> at = {};
  int world = 0;
  void add(const StepRow& row) {
    steps += row.steps;
    end_us = std::max(end_us, row.end_us);
    total_us += row.total_us;
    longest_us = std::max(longest_us, row.longest_us);
    world = row.world;
    for (std::size_t i = 0; i < at.size(); ++i) at[i] += row.at[i];
  }
};

// The first step that ended after `t_us`.
std::uint64_t step_at(const Process& keeper, std::int64_t t_us) {
  const auto& rows = keeper.steps.rows;
  const auto at = std::partition_point(rows.begin(), rows.end(), [&](const StepRow& row) { return row.end_us < t_us; });
  return at == rows.end() ? rows.back().step : at->step;
}

// The events that a chart marks. Steps of events that name none follow from their times.
json marks_of(const Run& run) {
  json out = json::array();
  const Process* const keeper = timekeeper(run);
  if (!keeper) return out;
  constexpr std::string_view kMarked[] = {"generation", "death", "save", "not_finite", "clock", "error", "verdict", "load"};
  const auto marked = [&](const Process&, const Event& e) {
    return std::find(std::begin(kMarked), std::end(kMarked), e.kind) != std::end(kMarked);
  };
  for (const auto& [process, event] : events_of(run, marked)) {
    if (out.size() == kMostMarks) break;
    const std::int64_t named = integer(event->fields, event->kind == "verdict" ? "since_step" : "step");
    const std::int64_t step = named > 0 ? named : static_cast<std::int64_t>(step_at(*keeper, event->t_us));
    out.push_back({{"t", event->t_us}, {"step", step}, {"kind", event->kind}, {"text", event_text(*event)}});
  }
  return out;
}

struct Range {
  std::int64_t first = 1, last = 0;
};
Range steps_range(const Run& run, Query& query) {
  Range out;
  for (const auto& p : run.processes) {
    if (!p.steps.rows.empty()) out.last = std::max(out.last, static_cast<std::int64_t>(p.steps.rows.back().step));
    if (!p.metrics.rows.empty()) out.last = std::max(out.last, static_cast<std::int64_t>(p.metrics.rows.back().step));
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  out.first = query.number("from", 1, 0, kMost);
  out.last = std::min(out.last, query.number("to", kMost, 0, kMost));
  return out;
}

json chart(const Continued& from, const Buckets& buckets, std::int64_t last_bucket, std::uint64_t readings) {
  const ChartCursor next{buckets.first, buckets.width, std::max<std::int64_t>(last_bucket, 0), readings};
  return {{"reset", from.reset}, {"since", buckets.first + from.from * buckets.width}, {"width", buckets.width}, {"cursor", next.text()}};
}

// The first 12 numbers of an object in an event.
json amounts(const json& fields, const char* key) {
  json out = json::object();
  const auto at = fields.find(key);
  if (at == fields.end() || !at->is_object()) return out;
  for (const auto& [name, value] : at->items()) {
    if (value.is_number() && out.size() < 12) out[name] = integer(*at, name.c_str());
  }
  return out;
}

}  // namespace

Result<json> steps_view(const Run& run, const json& verdicts, Query& query) {
  const auto points = query.number("points", kDefaultPoints, 10, kMostPoints);
  const auto range = steps_range(run, query);
  const auto buckets = buckets_over(range.first, std::max(range.first, range.last), points);
  const auto from = continued(query, buckets, readings_of(run));
  std::map<std::int64_t, PlaceSums> sums;
  for (const auto& p : run.processes) {
    // From the newest row back, so that an answer with few new buckets reads few rows.
    for (auto row = p.steps.rows.rbegin(); row != p.steps.rows.rend(); ++row) {
      const auto step = static_cast<std::int64_t>(row->step);
      if (step > range.last) continue;
      if (step < range.first || buckets.of(step) < from.from) break;
      sums[buckets.of(step)].add(*row);
    }
  }
  json out = chart(from, buckets, buckets.of(std::max(range.first, range.last)), readings_of(run));
  json columns = json::object();
  for (const char* name : {"step", "end", "us", "max", "world"}) columns[name] = json::array();
  for (int i = 0; i < kNumActivities; ++i) columns[key_of(static_cast<Activity>(i))] = json::array();
  for (const auto& [bucket, sum] : sums) {
    columns["step"].push_back(std::min(buckets.first + (bucket + 1) * buckets.width - 1, range.last));
    columns["end"].push_back(sum.end_us);
    columns["us"].push_back(sum.total_us / sum.steps);
    columns["max"].push_back(sum.longest_us);
    columns["world"].push_back(sum.world);
    for (int i = 0; i < kNumActivities; ++i)
      columns[key_of(static_cast<Activity>(i))].push_back(sum.at[static_cast<std::size_t>(i)] / sum.steps);
  }
  out["columns"] = std::move(columns);
  out["first"] = range.first, out["last"] = range.last;
  out["marks"] = marks_of(run);
  for (const auto& verdict : verdicts) {
    const std::int64_t since = integer(verdict, "since_step");
    if (since > 0)
      out["marks"].push_back({{"t", integer(verdict, "since")}, {"step", since}, {"kind", "verdict"}, {"text", text(verdict, "sentence")}});
  }
  return out;
}

Result<json> metrics_view(const Run& run, Query& query) {
  const auto points = query.number("points", kDefaultPoints, 10, kMostPoints);
  const auto range = steps_range(run, query);
  const auto buckets = buckets_over(range.first, std::max(range.first, range.last), points);
  const auto from = continued(query, buckets, readings_of(run));
  struct Mean {
    double sum = 0;
    std::int64_t finite = 0, not_finite = 0;
  };
  std::map<std::string, std::map<std::int64_t, Mean>> by_name;
  std::set<std::string> left_out;
  std::set<std::int64_t> used;
  for (const auto& p : run.processes) {
    for (auto row = p.metrics.rows.rbegin(); row != p.metrics.rows.rend(); ++row) {
      const auto step = static_cast<std::int64_t>(row->step);
      if (step > range.last) continue;
      if (step < range.first || buckets.of(step) < from.from) break;
      for (const auto& [name, value] : row->values) {
        if (!by_name.contains(name) && by_name.size() == kMostMetrics) {
          left_out.insert(name);
          continue;
        }
        Mean& mean = by_name[name][buckets.of(step)];
        std::isfinite(value) ? (mean.sum += value, ++mean.finite) : ++mean.not_finite;
        used.insert(buckets.of(step));
      }
    }
  }
  json out = chart(from, buckets, buckets.of(std::max(range.first, range.last)), readings_of(run));
  json steps = json::array(), series = json::array();
  for (const auto bucket : used) steps.push_back(std::min(buckets.first + (bucket + 1) * buckets.width - 1, range.last));
  for (const auto& [name, means] : by_name) {
    json values = json::array();
    std::int64_t not_finite = 0;
    for (const auto bucket : used) {
      const auto at = means.find(bucket);
      values.push_back(at == means.end() || at->second.finite == 0 ? json()
                                                                   : json(at->second.sum / static_cast<double>(at->second.finite)));
      not_finite += at == means.end() ? 0 : at->second.not_finite;
    }
    series.push_back({{"name", name}, {"values", std::move(values)}, {"not_finite", not_finite}});
  }
  out["steps"] = std::move(steps), out["series"] = std::move(series);
  out["left_out"] = left_out.size();
  return out;
}

Result<json> memory_view(const Run& run, Query& query) {
  const auto points = query.number("points", kDefaultPoints, 10, kMostPoints);
  const auto offset = query.number("offset", 0, 0, 1'000'000), limit = query.number("limit", 16, 1, kMostMemorySeries);
  std::vector<const Process*> all;
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
  for (const auto& p : run.processes) {
    if (p.samples.rows.empty()) continue;
    all.push_back(&p);
    first = std::min(first, p.facts.start_us > 0 ? p.facts.start_us : p.samples.rows.front().t_us);
    last = std::max(last, p.samples.rows.back().t_us);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  if (all.empty()) first = last = 0;
  constexpr std::int64_t kSecond = 1'000'000;
  const std::int64_t origin = first / kSecond;
  const auto seconds = buckets_over(origin, std::max(origin, last / kSecond), points);
  const auto from = continued(query, seconds, readings_of(run) + static_cast<std::uint64_t>(offset * 1000 + limit));
  // Each series by bucket: the most resident bytes, or the fewest free ones.
  using Values = std::map<std::int64_t, std::int64_t>;
  std::set<std::int64_t> used;
  const auto collect = [&](const Process& p, std::int64_t runtime::SampleRow::*field, bool most) {
    Values out;
    for (auto row = p.samples.rows.rbegin(); row != p.samples.rows.rend(); ++row) {
      const auto bucket = seconds.of(row->t_us / kSecond);
      if (bucket < from.from) break;
      const std::int64_t value = (*row).*field;
      const auto [at, fresh] = out.emplace(bucket, value);
      if (!fresh) at->second = most ? std::max(at->second, value) : std::min(at->second, value);
      used.insert(bucket);
    }
    return out;
  };
  std::vector<std::pair<json, Values>> series, hosts;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Process& p = *all[i];
    const auto& newest = p.samples.rows.back();
    if (static_cast<std::int64_t>(i) >= offset && static_cast<std::int64_t>(series.size()) < limit) {
      series.push_back({{{"id", p.folder}, {"rank", p.rank()}, {"host", p.facts.host}, {"role", p.facts.role}},
                        collect(p, &runtime::SampleRow::rss, true)});
      const auto measured = std::find_if(p.events.rows.rbegin(), p.events.rows.rend(), [](const Event& e) { return e.kind == "memory"; });
      for (const char* key : {"kinds", "predicted"}) {
        const json kinds = measured == p.events.rows.rend() ? json() : amounts(measured->fields, key);
        if (!kinds.empty()) series.back().first[key] = kinds;
      }
    }
    if (hosts.size() < kMostMemorySeries && seen.insert(p.facts.host).second) {
      hosts.push_back({{{"host", p.facts.host}, {"total", newest.host_total}}, collect(p, &runtime::SampleRow::host_free, false)});
    }
  }
  json out = chart(from, seconds, seconds.of(std::max(origin, last / kSecond)),
                   readings_of(run) + static_cast<std::uint64_t>(offset * 1000 + limit));
  json times = json::array();
  for (const auto bucket : used) times.push_back(seconds.first + bucket * seconds.width);
  const auto write = [&](std::vector<std::pair<json, Values>>& from_all) {
    json rows = json::array();
    for (auto& [row, values] : from_all) {
      json column = json::array();
      for (const auto bucket : used) {
        const auto at = values.find(bucket);
        column.push_back(at == values.end() ? json() : json(at->second));
      }
      row["values"] = std::move(column);
      rows.push_back(std::move(row));
    }
    return rows;
  };
  out["t"] = std::move(times);
  out["series"] = write(series), out["hosts"] = write(hosts);
  out["total"] = all.size(), out["offset"] = offset;
  return out;
}

}  // namespace shoal::scheduler::runs::views
