#include "scheduler/runs/views/views.h"

#include <algorithm>
#include <set>

#include "runtime/core/version.h"
#include "scheduler/runs/present.h"
#include "scheduler/runs/views/parts.h"

namespace shoal::scheduler::runs {

using nlohmann::json;
using runtime::Activity;

namespace {

using views::events_of;
using views::Query;

constexpr std::size_t kExportedSteps = 40;

// The part of the run's time that its steps took, less pauses for changes of its workers and saves.
json goodput(const Run& run, std::int64_t begin, std::int64_t end) {
  const Process* const keeper = views::timekeeper(run);
  if (!keeper || end <= begin) return {};
  std::int64_t good = 0;
  for (const auto& row : keeper->steps.rows) good += row.total_us - row.in(Activity::kSave);
  for (const auto& [p, e] : events_of(run, [](const Process&, const Event& event) { return event.kind == "generation"; }))
    good -= views::integer(e->fields, "pause_us");
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
    last = std::max(last, views::last_time(p));
    if (views::trains(p)) step = std::max(step, views::last_step(p));
    num_events += p.events.rows.size();
  }
  runtime::StepRow recent;
  recent.steps = 0;
  for (const auto& rank : ranks) {
    const Process* const p = rank.process;
    living += views::lives(*p) ? 1 : 0;
    const auto& rows = p->steps.rows;
    if (rows.empty() || rows.back().step + 1 < step) continue;  // the rank has left the run
    hosts.insert(p->facts.host);
    world = rows.back().world, generation = std::max(generation, rows.back().generation);
    std::size_t wanted = std::clamp<std::size_t>(4096 / ranks.size(), 1, 32);
    for (auto row = rows.rbegin(); row != rows.rend() && wanted > 0; ++row, --wanted) recent.add(*row);
  }
  json metrics = json::object();
  std::map<std::string, std::pair<std::uint64_t, double>> newest;
  for (const auto& p : run.processes) {
    if (p.metrics.rows.empty()) continue;
    for (const auto& [name, value] : p.metrics.rows.back().values) {
      if (newest.size() >= views::kMostMetrics && !newest.contains(name)) continue;
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
    if (request.view == "steps") return views::steps_view(run, verdicts, query);
    if (request.view == "metrics") return views::metrics_view(run, query);
    if (request.view == "memory") return views::memory_view(run, query);
    if (request.view == "workers") return views::workers_view(run, query, now_us);
    if (request.view == "step") return views::step_view(run, query);
    if (request.view == "events") return views::events_view(run, query);
    if (request.view == "checkpoints") return views::checkpoints_view(run, query);
    if (request.view == "health") return views::health_view(run, query);
    return fail(not_found("a run has no view '" + request.view + "'"));
  };
  auto out = of();
  if (query.wrong()) return fail(*query.wrong());
  return out;
}

json snapshot_of(const Run& run, const Verdicts& verdicts, std::int64_t now_us) {
  json views = json::object(), steps = json::object();
  const std::map<std::string, std::string> large = {{"points", "2000"}, {"limit", std::to_string(views::kMostLimit)}};
  for (const auto name : kViews) {
    std::map<std::string, std::string> query = large;
    if (name == "memory") query["limit"] = std::to_string(views::kMostMemorySeries);
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
