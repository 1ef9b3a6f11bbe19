#include "scheduler/runs/summary.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "scheduler/runs/present.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using nlohmann::json;

namespace {

constexpr std::size_t kNewest = 64;

RankSummary summary_of(const Rank& r, std::int64_t now_us) {
  const auto& p = *r.process;
  RankSummary out;
  out.rank = r.rank, out.host = p.facts.host, out.pid = p.live ? p.live->pid : p.facts.pid, out.life = p.life;
  if (p.live) {
    out.step = p.live->step;
    out.activity = runtime::key_of(p.life == Life::kEnded ? runtime::Activity::kEnded : p.live->activity);
    if (p.life != Life::kEnded && p.live->activity != runtime::Activity::kEnded) out.unit = p.unit_name(p.live->unit);
    out.held_us = std::max<std::int64_t>(now_us - p.live->since_us, 0);
  }
  std::vector<double> total, own, exposed, load, cpu;
  const auto& rows = p.steps.rows;
  if (!rows.empty()) out.step = std::max(out.step, rows.back().step);
  for (std::size_t i = rows.size() - std::min(rows.size(), kNewest); i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto n = static_cast<double>(row.steps), us = std::max(static_cast<double>(row.total_us), 1.0);
    total.push_back(us / n), own.push_back(static_cast<double>(row.own_us()) / n);
    exposed.push_back(row.exposed_part());
    load.push_back(static_cast<double>(row.in(runtime::Activity::kLoader)) / us);
    cpu.push_back(static_cast<double>(row.cpu_us) / us);
  }
  out.step_us = median(std::move(total)), out.own_us = median(std::move(own)), out.exposed = median(std::move(exposed));
  out.load = median(std::move(load)), out.cpu = median(std::move(cpu));
  if (!p.samples.rows.empty()) out.rss = p.samples.rows.back().rss;
  return out;
}

}  // namespace

Summary summary(const Run& run, std::int64_t now_us) {
  Summary out;
  const auto ranks = present_ranks(run);
  std::vector<double> step_us;
  for (const auto& r : ranks) {
    out.ranks.push_back(summary_of(r, now_us));
    out.step = std::max(out.step, out.ranks.back().step);
    if (out.ranks.back().step_us > 0) step_us.push_back(out.ranks.back().step_us);
    if (r.process->live) out.generation = std::max(out.generation, r.process->live->generation);
  }
  out.hosts = hosts_of(ranks).size();
  out.step_us = median(std::move(step_us));
  std::map<std::string, std::pair<std::pair<std::uint64_t, std::int64_t>, double>> newest;
  for (const auto& p : run.processes) {
    const auto began_us = p.live ? p.live->start_us : p.facts.start_us;
    if (began_us > 0 && (out.began_us == 0 || began_us < out.began_us)) out.began_us = began_us;
    out.newest_us = std::max(out.newest_us, newest_us(p));
    for (const auto& row : p.metrics.rows) {
      for (const auto& [name, value] : row.values) {
        auto& at = newest[name];
        if (std::make_pair(row.step, row.t_us) >= at.first) at = {{row.step, row.t_us}, value};
      }
    }
  }
  for (const auto& [name, value] : newest) out.metrics.emplace_back(name, value.second);
  out.checkpoint = !run.checkpoint.empty() ? run.checkpoint : run.end ? run.end->checkpoint : "";
  return out;
}

json to_json(const Summary& s) {
  json ranks = json::array();
  for (const auto& r : s.ranks) {
    ranks.push_back({{"rank", r.rank},
                     {"host", r.host},
                     {"pid", r.pid},
                     {"life", life_text(r.life)},
                     {"step", r.step},
                     {"activity", r.activity},
                     {"unit", r.unit},
                     {"held_us", r.held_us},
                     {"step_us", r.step_us},
                     {"own_us", r.own_us},
                     {"exposed", r.exposed},
                     {"load", r.load},
                     {"cpu", r.cpu},
                     {"rss", r.rss}});
  }
  json metrics = json::object();
  for (const auto& [name, value] : s.metrics)
    metrics[name] = std::isfinite(value) ? json(value) : json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  return {{"ranks", std::move(ranks)},  {"hosts", s.hosts},           {"step", s.step},
          {"generation", s.generation}, {"step_us", s.step_us},       {"began", s.began_us},
          {"newest", s.newest_us},      {"checkpoint", s.checkpoint}, {"metrics", std::move(metrics)}};
}

}  // namespace shoal::scheduler::runs
