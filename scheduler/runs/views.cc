#include "scheduler/runs/views.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "runtime/core/version.h"
#include "scheduler/runs/critical_path.h"
#include "scheduler/runs/event_text.h"

namespace shoal::scheduler::runs {

using nlohmann::json;
using runtime::key_of;
using runtime::kNumPlaces;
using runtime::Place;
using runtime::StepRow;

namespace {

constexpr std::int64_t kDefaultPoints = 400, kMostPoints = 5'000, kDefaultLimit = 100, kMostLimit = 5'000;
constexpr std::size_t kMostMarks = 200, kMostMetrics = 64, kMostMemorySeries = 64, kMostLanes = 256, kExportedSteps = 40;
constexpr std::size_t kRecentSteps = 256;  // a rank's steps that its quantiles count

// The query of a request, each of whose numbers has bounds. The first wrong one is the error of all.
class Query {
 public:
  explicit Query(const std::map<std::string, std::string>& given) : given_(given) {}
  std::int64_t number(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most) {
    const auto at = given_.find(name);
    if (at == given_.end()) return otherwise;
    std::int64_t out = 0;
    const std::string& text = at->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc() && end == text.data() + text.size() && out >= least && out <= most) return out;
    if (!wrong_) wrong_ = invalid_argument(fmt::format("{} is a number from {} to {}, not '{}'", name, least, most, text));
    return otherwise;
  }
  std::string text(const char* name) const {
    const auto at = given_.find(name);
    return at == given_.end() ? "" : at->second;
  }
  const std::optional<Error>& wrong() const { return wrong_; }

 private:
  const std::map<std::string, std::string>& given_;
  std::optional<Error> wrong_;
};

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

std::uint64_t readings_of(const Run& run) {
  std::uint64_t out = run.processes.size();
  for (const auto& p : run.processes) out += p.readings;
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
  std::array<std::int64_t, kNumPlaces> at = {};
  int world = 0;
  void add(const StepRow& row) {
    steps += row.steps;
    end_us = std::max(end_us, row.end_us);
    total_us += row.total_us;
    longest_us = std::max(longest_us, row.longest_us);
    world = row.world;
    for (std::size_t i = 0; i < at.size(); ++i) at[i] += row.at[i];
  }
  std::int64_t exposed_us() const {
    std::int64_t out = 0;
    for (int i = 0; i < kNumPlaces; ++i) out += runtime::is_wait(static_cast<Place>(i)) ? at[static_cast<std::size_t>(i)] : 0;
    return out;
  }
};

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }

template <class T>
double quantile(const std::vector<T>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, sorted.size() - 1);
  return static_cast<double>(sorted[low]) + (at - static_cast<double>(low)) * static_cast<double>(sorted[high] - sorted[low]);
}

std::uint64_t last_step(const Process& p) {
  const std::uint64_t rows = p.steps.rows.empty() ? 0 : p.steps.rows.back().step;
  return std::max(rows, p.live ? p.live->step : 0);
}
std::int64_t last_time(const Process& p) {
  std::int64_t out = p.facts.start_us;
  if (!p.steps.rows.empty()) out = std::max(out, p.steps.rows.back().end_us);
  if (!p.samples.rows.empty()) out = std::max(out, p.samples.rows.back().t_us);
  if (!p.metrics.rows.empty()) out = std::max(out, p.metrics.rows.back().t_us);
  if (!p.events.rows.empty()) out = std::max(out, p.events.rows.back().t_us);
  return out;
}
bool trains(const Process& p) { return p.rank() >= 0; }
bool lives(const Process& p) { return p.life == Life::kAlive || p.life == Life::kSilent; }

// The ranks at present, or those of the run's end. A rank that another process has taken over is its former process no more.
std::vector<const Process*> present_ranks(const Run& run) {
  bool any = false;
  for (const auto& p : run.processes) any = any || (trains(p) && lives(p));
  std::uint64_t newest = 0;
  for (const auto& p : run.processes) newest = std::max(newest, trains(p) ? last_step(p) : 0);
  std::vector<const Process*> out;
  for (const auto& p : run.processes) {
    if (trains(p) && (any ? lives(p) : last_step(p) + 1 >= newest)) out.push_back(&p);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  return out;
}

struct TimedEvent {
  const Process* process;
  const Event* event;
};
std::vector<TimedEvent> events_of(const Run& run, const std::function<bool(const Process&, const Event&)>& wanted) {
  std::vector<TimedEvent> out;
  for (const auto& p : run.processes) {
    for (const auto& e : p.events.rows) {
      if (wanted(p, e)) out.push_back({&p, &e});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.event->t_us > b.event->t_us; });
  return out;
}

std::string events_version(const Run& run) {
  std::uint64_t appended = 0;
  for (const auto& p : run.processes) appended += p.events.appended;
  return fmt::format("{}.{}", appended, readings_of(run));
}

std::int64_t integer(const json& fields, const char* key, std::int64_t otherwise = 0) {
  const auto at = fields.find(key);
  if (at == fields.end() || !at->is_number()) return otherwise;
  const double value = at->get<double>();
  return std::abs(value) < 9e15 ? static_cast<std::int64_t>(value) : otherwise;
}
std::string text(const json& fields, const char* key) {
  const auto at = fields.find(key);
  return at != fields.end() && at->is_string() ? at->get<std::string>() : "";
}

// The process with the most step rows, whose time of day stands for the run's.
const Process* timekeeper(const Run& run) {
  const Process* out = nullptr;
  for (const auto& p : run.processes) {
    if (trains(p) && !p.steps.rows.empty() && (!out || p.steps.rows.size() > out->steps.rows.size())) out = &p;
  }
  return out;
}
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

// --- the views

Result<json> steps_view(const Run& run, Query& query) {
  const auto points = query.number("points", kDefaultPoints, 10, kMostPoints);
  const auto range = steps_range(run, query);
  const auto buckets = buckets_over(range.first, std::max(range.first, range.last), points);
  const auto from = continued(query, buckets, readings_of(run));
  std::map<std::int64_t, PlaceSums> sums;
  for (const auto& p : run.processes) {
    // From the newest row back, so that an answer costs what it says.
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
  for (int i = 0; i < kNumPlaces; ++i) columns[key_of(static_cast<Place>(i))] = json::array();
  for (const auto& [bucket, sum] : sums) {
    columns["step"].push_back(std::min(buckets.first + (bucket + 1) * buckets.width - 1, range.last));
    columns["end"].push_back(sum.end_us);
    columns["us"].push_back(sum.total_us / sum.steps);
    columns["max"].push_back(sum.longest_us);
    columns["world"].push_back(sum.world);
    for (int i = 0; i < kNumPlaces; ++i) columns[key_of(static_cast<Place>(i))].push_back(sum.at[static_cast<std::size_t>(i)] / sum.steps);
  }
  out["columns"] = std::move(columns);
  out["first"] = range.first, out["last"] = range.last;
  out["marks"] = marks_of(run);
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

// A page of a table; `rows` has all of them.
json paged(json rows, std::int64_t offset, std::int64_t limit, const std::string& version) {
  const auto total = static_cast<std::int64_t>(rows.size());
  json page = json::array();
  for (std::int64_t i = offset; i < std::min(total, offset + limit); ++i) page.push_back(std::move(rows[static_cast<std::size_t>(i)]));
  return {{"rows", std::move(page)}, {"total", total}, {"offset", offset}, {"cursor", version}};
}
struct Page {
  std::int64_t offset, limit;
  explicit Page(Query& query)
      : offset(query.number("offset", 0, 0, 1'000'000'000)), limit(query.number("limit", kDefaultLimit, 1, kMostLimit)) {}
  std::string text() const { return fmt::format("{}.{}", offset, limit); }
};
json unchanged(const std::string& version) { return {{"unchanged", true}, {"cursor", version}}; }

json worker_row(const Process& p, std::int64_t now_us) {
  std::vector<std::int64_t> own, whole;
  std::int64_t exposed = 0, total = 0;
  const auto& rows = p.steps.rows;
  for (std::size_t i = rows.size() - std::min(rows.size(), kRecentSteps); i < rows.size(); ++i) {
    own.push_back(rows[i].own_us() / rows[i].steps);
    whole.push_back(rows[i].total_us / rows[i].steps);
    exposed += rows[i].exposed_us(), total += rows[i].total_us;
  }
  std::sort(own.begin(), own.end());
  std::sort(whole.begin(), whole.end());
  json quantiles = json::array();
  for (const double q : {0.0, 0.25, 0.5, 0.75, 1.0}) quantiles.push_back(own.empty() ? json() : json(std::llround(quantile(own, q))));
  json out = {{"id", p.folder},
              {"role", p.facts.role},
              {"rank", p.rank()},
              {"local_rank", p.facts.local_rank},
              {"host", p.facts.host},
              {"pid", p.facts.pid},
              {"life", life_text(p.life)},
              {"step", last_step(p)},
              {"own", std::move(quantiles)},
              {"us", own.empty() ? json() : json(std::llround(quantile(whole, 0.5)))},
              {"exposed", total > 0 ? number_or_null(static_cast<double>(exposed) / static_cast<double>(total)) : json()},
              {"score", json()}};
  if (p.live && p.life != Life::kEnded && p.life != Life::kGone) {
    out["place"] = key_of(p.live->place);
    out["unit"] = p.unit_name(p.live->unit);
    out["for_us"] = std::max<std::int64_t>(now_us - p.live->since_us, 0);
  }
  const auto& samples = p.samples.rows;
  if (!samples.empty()) {
    const auto& b = samples.back();
    out["rss"] = b.rss;
    const auto& a = samples[samples.size() - std::min<std::size_t>(samples.size(), 10)];
    const auto wall = static_cast<double>(b.t_us - a.t_us);
    if (wall > 0) {
      out["cpu"] = number_or_null(static_cast<double>(b.cpu_us - a.cpu_us) / wall);
      out["runq"] = number_or_null(static_cast<double>(b.runqueue_us - a.runqueue_us) / wall);
    }
  }
  return out;
}

Result<json> workers_view(const Run& run, Query& query, std::int64_t now_us) {
  const Page page(query);
  const std::string sort = query.text("sort").empty() ? "rank" : query.text("sort");
  constexpr std::string_view kSorts[] = {"rank", "host", "score", "own", "exposed", "rss", "step"};
  if (std::find(std::begin(kSorts), std::end(kSorts), sort) == std::end(kSorts))
    return fail(invalid_argument("sort is one of rank, host, score, own, exposed, rss, step, not '" + sort + "'"));
  json rows = json::array();
  std::vector<double> medians;
  for (const auto& p : run.processes) {
    if (!trains(p)) continue;
    rows.push_back(worker_row(p, now_us));
    if (const auto& own = rows.back()["own"][2]; own.is_number() && (lives(p) || run.state != RunState::kRunning)) medians.push_back(own);
  }
  std::sort(medians.begin(), medians.end());
  // Among an even number, the lower of the middle two: one straggler of two ranks is not half as slow.
  const double usual = medians.empty() ? 0 : medians[(medians.size() - 1) / 2];
  for (auto& row : rows) {
    if (usual > 0 && row["own"][2].is_number()) row["score"] = row["own"][2].get<double>() / usual - 1;
  }
  const auto key = [&](const json& row) -> double {
    const json& value = sort == "own" ? row["own"][2] : row.contains(sort) ? row[sort] : json();
    return value.is_number() ? value.get<double>() : -std::numeric_limits<double>::infinity();
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const json& a, const json& b) {
    if (sort == "host") return a["host"].get_ref<const std::string&>() < b["host"].get_ref<const std::string&>();
    if (sort == "rank") return a["rank"].get<int>() < b["rank"].get<int>();
    return key(a) > key(b);
  });
  json out = paged(std::move(rows), page.offset, page.limit, "");
  out["usual"] = usual;
  out["counted_steps"] = kRecentSteps;
  return out;
}

Result<json> step_view(const Run& run, Query& query) {
  const Page page(query);
  const auto wanted = static_cast<std::uint64_t>(query.number("number", 0, 0, std::int64_t{1} << 53));
  std::map<std::uint64_t, std::size_t> known;  // how many ranks detail a step
  for (const auto& p : run.processes) {
    for (const auto& row : p.spans.rows) ++known[row.step];
  }
  json numbers = json::array();
  for (const auto& [step, ranks] : known) numbers.push_back(step);
  if (known.empty()) return json{{"step", json()}, {"steps", numbers}, {"lanes", json::array()}, {"total", 0}};
  std::uint64_t chosen = wanted;
  if (wanted == 0) {
    // The newest one that every rank has written by now.
    std::size_t most = 0;
    auto at = known.rbegin();
    for (int i = 0; i < 3 && at != known.rend(); ++i, ++at) {
      if (at->second > most) chosen = at->first, most = at->second;
    }
  }
  std::vector<std::pair<const Process*, const runtime::SpansRow*>> rows;
  for (const auto& p : run.processes) {
    for (const auto& row : p.spans.rows) {
      if (row.step == chosen) rows.emplace_back(&p, &row);
    }
  }
  if (rows.empty()) return fail(not_found(fmt::format("step {} is not recorded in detail", chosen)));
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second->rank < b.second->rank; });
  std::int64_t begin = rows.front().second->begin_us, end = 0;
  for (const auto& [p, row] : rows) begin = std::min(begin, row->begin_us);
  // Numbers of units belong to a process: lanes share one list of names.
  std::map<std::string, int> units;
  json names = json::array();
  const auto unit_number = [&](const Process& p, int unit) {
    if (unit < 0) return -1;
    const std::string name = p.unit_name(unit);
    const auto [at, fresh] = units.emplace(name, static_cast<int>(names.size()));
    if (fresh) names.push_back(name);
    return at->second;
  };
  std::vector<Lane> lanes;
  json lanes_json = json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [p, row] = rows[i];
    Lane lane;
    for (auto span : row->spans) {
      span.from_us += row->begin_us - begin;
      span.unit = unit_number(*p, span.unit);
      end = std::max(end, span.from_us + span.length_us);
      lane.spans.push_back(span);
    }
    const auto at = static_cast<std::int64_t>(i);
    if (at >= page.offset && at < page.offset + page.limit) {
      json spans = json::array();
      for (const auto& s : lane.spans) spans.push_back({key_of(s.place), s.unit, s.from_us, s.length_us});
      lanes_json.push_back({{"rank", row->rank}, {"host", p->facts.host}, {"lane", i}, {"spans", std::move(spans)}});
    }
    if (lanes.size() < kMostLanes) lanes.push_back(std::move(lane));
  }
  json critical = json::array();
  if (rows.size() <= kMostLanes) {
    for (const auto& part : critical_path(lanes)) critical.push_back({part.lane, part.from_us, part.length_us, key_of(part.place)});
  }
  return json{{"step", chosen},
              {"steps", std::move(numbers)},
              {"begin", begin},
              {"us", end},
              {"units", std::move(names)},
              {"lanes", std::move(lanes_json)},
              {"total", rows.size()},
              {"critical", std::move(critical)}};
}

json event_row(const TimedEvent& e) {
  return {{"t", e.event->t_us},
          {"kind", e.event->kind},
          {"rank", e.process->rank()},
          {"host", e.process->facts.host},
          {"role", e.process->facts.role},
          {"text", event_text(*e.event)},
          {"fields", e.event->fields}};
}

Result<json> events_view(const Run& run, Query& query) {
  const Page page(query);
  const std::string kind = query.text("kind"), contains = query.text("contains");
  const std::string version = events_version(run);
  if (query.text("cursor") == version) return unchanged(version);
  std::map<std::string, std::size_t> kinds;
  const auto found = events_of(run, [&](const Process& p, const Event& e) {
    ++kinds[e.kind];
    if (!kind.empty() && e.kind != kind) return false;
    return contains.empty() || event_text(e).find(contains) != std::string::npos || p.facts.host == contains;
  });
  json rows = json::array();
  for (std::size_t i = static_cast<std::size_t>(page.offset); i < found.size() && rows.size() < static_cast<std::size_t>(page.limit); ++i)
    rows.push_back(event_row(found[i]));
  return json{{"rows", std::move(rows)}, {"total", found.size()}, {"offset", page.offset}, {"cursor", version}, {"kinds", kinds}};
}

Result<json> checkpoints_view(const Run& run, Query& query) {
  const Page page(query);
  const std::string version = events_version(run);
  if (query.text("cursor") == version) return unchanged(version);
  json rows = json::array();
  std::map<std::string, std::size_t> by_path;  // each rank of a save may report it
  for (const auto& e : events_of(run, [](const Process&, const Event& event) { return event.kind == "save"; })) {
    const json& fields = e.event->fields;
    const std::string path = text(fields, "path");
    if (const auto at = by_path.find(path); at != by_path.end() && !path.empty()) {
      json& row = rows[at->second];
      if (row["step"] == integer(fields, "step")) {
        row["us"] = std::max(row["us"].get<std::int64_t>(), integer(fields, "us"));
        row["ranks"] = row["ranks"].get<int>() + 1;
        continue;
      }
    }
    by_path[path] = rows.size();
    rows.push_back({{"t", e.event->t_us},
                    {"step", integer(fields, "step")},
                    {"path", path},
                    {"bytes", integer(fields, "bytes")},
                    {"us", integer(fields, "us")},
                    {"ranks", 1},
                    {"latest", path == run.checkpoint || (run.end && path == run.end->checkpoint)},
                    {"verify", "shoal checkpoint verify " + shell_word(path)},
                    {"load", "shoal.checkpoint.load(" + python_text(path) + ", model, optimizer)"}});
  }
  return paged(std::move(rows), page.offset, page.limit, version);
}

Result<json> health_view(const Run& run, Query& query) {
  const Page page(query);
  json rows = json::array();
  std::map<std::string, json> hosts;
  for (const auto& p : run.processes) {
    json row = {{"id", p.folder},         {"role", p.facts.role},      {"rank", p.rank()},
                {"host", p.facts.host},   {"pid", p.facts.pid},        {"device", p.facts.device},
                {"argv", p.facts.argv},   {"start", p.facts.start_us}, {"life", life_text(p.life)},
                {"quiet_us", p.quiet_us}, {"last", last_time(p)},      {"skipped_lines", p.skipped_lines}};
    json& host = hosts[p.facts.host];
    if (host.is_null()) host = {{"host", p.facts.host}, {"processes", 0}, {"clock_jumps", 0}, {"recording_stops", 0}, {"t", 0}};
    host["processes"] = host["processes"].get<int>() + 1;
    for (const auto& e : p.events.rows) {
      if (e.kind == "clock") host["clock_jumps"] = host["clock_jumps"].get<int>() + 1;
      if (e.kind == "recording_stopped") host["recording_stops"] = host["recording_stops"].get<int>() + 1;
    }
    if (!p.samples.rows.empty()) {
      const auto& s = p.samples.rows.back();
      row["rss"] = s.rss, row["faults"] = s.major_faults;
      if (s.t_us >= host["t"].get<std::int64_t>()) {
        host["t"] = s.t_us, host["disk_free"] = s.disk_free;
        host["free"] = s.host_free, host["total"] = s.host_total;
        host["psi_cpu"] = s.pressure_cpu, host["psi_io"] = s.pressure_io, host["psi_mem"] = s.pressure_memory;
      }
    }
    rows.push_back(std::move(row));
  }
  json out = paged(std::move(rows), page.offset, page.limit, "");
  out["hosts"] = json::array();
  for (auto& [name, host] : hosts) {
    if (out["hosts"].size() < static_cast<std::size_t>(kMostLimit)) out["hosts"].push_back(std::move(host));
  }
  out["version"] = kVersion;
  out["processes_left_out"] = run.processes_left_out;
  return out;
}

// The part of the run's time that its steps took, less pauses for changes of its workers and saves.
json goodput(const Run& run, std::int64_t begin, std::int64_t end) {
  const Process* const keeper = timekeeper(run);
  if (!keeper || end <= begin) return {};
  std::int64_t good = 0;
  for (const auto& row : keeper->steps.rows) good += row.total_us - row.in(Place::kSave);
  for (const auto& [p, e] : events_of(run, [](const Process&, const Event& event) { return event.kind == "generation"; }))
    good -= integer(e->fields, "pause_us");
  return std::clamp(static_cast<double>(good) / static_cast<double>(end - begin), 0.0, 1.0);
}

Result<json> summary_view(const Run& run, const Verdicts& verdicts, std::int64_t now_us) {
  const auto ranks = present_ranks(run);
  std::int64_t begin = 0, last = 0;
  std::uint64_t step = 0, num_events = 0;
  int world = 0, generation = 0, living = 0;
  std::set<std::string> hosts;
  for (const auto& p : run.processes) {
    if (p.facts.start_us > 0 && (begin == 0 || p.facts.start_us < begin)) begin = p.facts.start_us;
    last = std::max(last, last_time(p));
    if (trains(p)) step = std::max(step, last_step(p));
    num_events += p.events.rows.size();
  }
  PlaceSums recent;
  for (const auto* p : ranks) {
    living += lives(*p) ? 1 : 0;
    hosts.insert(p->facts.host);
    const auto& rows = p->steps.rows;
    if (!rows.empty()) world = rows.back().world, generation = std::max(generation, rows.back().generation);
    std::size_t wanted = std::clamp<std::size_t>(4096 / ranks.size(), 1, 32);
    for (auto row = rows.rbegin(); row != rows.rend() && wanted > 0; ++row, --wanted) recent.add(*row);
  }
  json metrics = json::object();
  std::map<std::string, std::pair<std::uint64_t, double>> newest;
  for (const auto& p : run.processes) {
    if (p.metrics.rows.empty()) continue;
    for (const auto& [name, value] : p.metrics.rows.back().values) {
      if (newest.size() >= kMostMetrics && !newest.contains(name)) continue;
      auto& at = newest[name];
      if (p.metrics.rows.back().step >= at.first) at = {p.metrics.rows.back().step, value};
    }
  }
  for (const auto& [name, at] : newest)
    metrics[name] = std::isfinite(at.second) ? json(at.second) : json(std::isnan(at.second) ? "nan" : "inf");
  json found = verdicts;
  if (found.empty()) {
    for (const auto& [p, e] : events_of(run, [](const Process&, const Event& event) { return event.kind == "verdict"; })) {
      found.push_back(e->fields);
      break;
    }
  }
  json out = {{"schema", "shoal.run_view/1"},
              {"name", run.name},
              {"state", state_text(run.state)},
              {"verdicts", std::move(found)},
              {"step", step},
              {"world", world},
              {"generation", generation},
              {"living", living},
              {"processes", run.processes.size()},
              {"hosts", hosts.size()},
              {"begin", begin},
              {"last", last},
              {"now", now_us},
              {"metrics", metrics},
              {"events", num_events},
              {"version", kVersion},
              {"goodput", goodput(run, begin, last)},
              {"checkpoint", run.checkpoint}};
  out["us"] = recent.steps > 0 ? json(recent.total_us / recent.steps) : json();
  out["exposed"] = recent.total_us > 0 ? json(static_cast<double>(recent.exposed_us()) / static_cast<double>(recent.total_us)) : json();
  if (run.end) {
    out["end"] = {{"code", run.end->exit_code}, {"cause", run.end->cause}, {"retryable", run.end->retryable}, {"unix_s", run.end->unix_s}};
    out["end"]["rank"] = run.end->rank ? json(*run.end->rank) : json();
  }
  return out;
}

}  // namespace

Result<json> view_of(const Run& run, const Verdicts& verdicts, const ViewRequest& request, std::int64_t now_us) {
  Query query(request.query);
  const auto of = [&]() -> Result<json> {
    if (request.view == "summary") return summary_view(run, verdicts, now_us);
    if (request.view == "steps") return steps_view(run, query);
    if (request.view == "metrics") return metrics_view(run, query);
    if (request.view == "memory") return memory_view(run, query);
    if (request.view == "workers") return workers_view(run, query, now_us);
    if (request.view == "step") return step_view(run, query);
    if (request.view == "events") return events_view(run, query);
    if (request.view == "checkpoints") return checkpoints_view(run, query);
    if (request.view == "health") return health_view(run, query);
    return fail(not_found("a run has no view '" + request.view + "'"));
  };
  auto out = of();
  if (query.wrong()) return fail(*query.wrong());
  return out;
}

json snapshot_of(const Run& run, const Verdicts& verdicts, std::int64_t now_us) {
  json views = json::object(), steps = json::object();
  const std::map<std::string, std::string> large = {{"points", "2000"}, {"limit", std::to_string(kMostLimit)}};
  for (const auto name : kViews) {
    std::map<std::string, std::string> query = large;
    if (name == "memory") query["limit"] = std::to_string(kMostMemorySeries);
    if (name == "step") query["limit"] = "64";
    if (auto view = view_of(run, verdicts, {std::string(name), query}, now_us)) views[std::string(name)] = *std::move(view);
  }
  const json numbers = views["step"]["steps"];
  for (std::size_t i = numbers.size() - std::min(numbers.size(), kExportedSteps); i < numbers.size(); ++i) {
    const std::string number = std::to_string(numbers[i].get<std::uint64_t>());
    if (auto view = view_of(run, verdicts, {"step", {{"number", number}, {"limit", "64"}}}, now_us)) {
      view->erase("steps");
      steps[number] = *std::move(view);
    }
  }
  return {{"schema", "shoal.export/1"}, {"run", run.name}, {"now", now_us}, {"views", std::move(views)}, {"steps", std::move(steps)}};
}

}  // namespace shoal::scheduler::runs
