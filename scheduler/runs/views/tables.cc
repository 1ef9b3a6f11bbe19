// Tables: workers, events, checkpoints and health.
#include <algorithm>
#include <limits>

#include "runtime/core/version.h"
#include "scheduler/runs/present.h"
#include "scheduler/runs/views/event_text.h"
#include "scheduler/runs/views/parts.h"

namespace shoal::scheduler::runs::views {

using runtime::key_of;

namespace {

constexpr std::size_t kRecentSteps = 256;  // a rank's steps that its quantiles count

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }

template <class T>
double quantile(const std::vector<T>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, sorted.size() - 1);
  return static_cast<double>(sorted[low]) + (at - static_cast<double>(low)) * static_cast<double>(sorted[high] - sorted[low]);
}

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
    out["activity"] = key_of(p.live->activity);
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

json event_row(const TimedEvent& e) {
  return {{"t", e.event->t_us},
          {"kind", e.event->kind},
          {"rank", e.process->rank()},
          {"host", e.process->facts.host},
          {"role", e.process->facts.role},
          {"text", event_text(*e.event)},
          {"fields", e.event->fields}};
}

}  // namespace

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
  // The lower of the middle two, if their number is even: by their mean, a straggler of two ranks would look half as slow as it is.
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
  json out = paged(std::move(rows), page, "");
  out["usual"] = usual;
  out["counted_steps"] = kRecentSteps;
  return out;
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
  std::map<std::string, std::size_t> by_path;  // the row of each path, since every rank of a save may report it
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
  return paged(std::move(rows), page, version);
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
  json out = paged(std::move(rows), page, "");
  out["hosts"] = json::array();
  for (auto& [name, host] : hosts) {
    if (out["hosts"].size() < static_cast<std::size_t>(kMostLimit)) out["hosts"].push_back(std::move(host));
  }
  out["version"] = kVersion;
  out["processes_left_out"] = run.processes_left_out;
  return out;
}

}  // namespace shoal::scheduler::runs::views
