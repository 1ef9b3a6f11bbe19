#include "scheduler/cli/runs/run_text.h"

#include <algorithm>
#include <cmath>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "runtime/core/printable.h"
#include "scheduler/runs/present.h"
#include "scheduler/runs/views/event_text.h"

namespace shoal::scheduler::cli {

using nlohmann::json;
using runs::bytes_text;
using runs::duration_text;

namespace {

constexpr std::size_t kMostEventText = 200;

std::string percent(double part) { return fmt::format("{:.0f} %", part * 100); }

// The first line of an event's text.
std::string line_of(const runs::Event& event) {
  auto text = runs::event_text(event);
  text = text.substr(0, text.find('\n'));
  return text.size() > kMostEventText ? text.substr(0, kMostEventText) + ".." : text;
}

}  // namespace

Diagnosis diagnosed(const runs::Run& run, std::int64_t now_us) { return {runs::summary(run, now_us), runs::diagnose(run, now_us)}; }

json run_json(const runs::Run& run, const Diagnosis& d) {
  json out = runs::to_json(d.summary);
  out["name"] = run.name, out["path"] = run.path, out["state"] = runs::state_text(run.state);
  out["processes"] = run.processes.size(), out["processes_left_out"] = run.processes_left_out;
  out["verdicts"] = json::array();
  for (const auto& v : d.verdicts) out["verdicts"].push_back(runs::to_json(v));
  if (run.end) {
    out["exit"] = {
        {"exit_code", run.end->exit_code}, {"cause", run.end->cause}, {"retryable", run.end->retryable}, {"unix_s", run.end->unix_s}};
    if (run.end->rank) out["exit"]["rank"] = *run.end->rank;
  }
  return out;
}

std::string local_time_text(std::int64_t unix_us) {
  return unix_us == 0 ? "-" : fmt::format("{:%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(unix_us / 1'000'000)));
}

std::string headline(const runs::Run& run, const Diagnosis& d) {
  const auto& s = d.summary;
  std::string out = fmt::format("{}  {}  ", printable(run.name), runs::state_text(run.state));
  out += s.ranks.size() == 1 ? "1 rank" : fmt::format("{} ranks", s.ranks.size());
  if (s.hosts > 1) out += fmt::format(" on {} hosts", s.hosts);
  out += fmt::format(", step {}", s.step);
  if (s.step_us > 0) out += fmt::format(", {} per step", duration_text(s.step_us));
  if (s.generation > 1) out += fmt::format(", generation {}", s.generation);
  return out;
}

std::string verdict_lines(const std::vector<runs::Verdict>& verdicts, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < verdicts.size() && i < most; ++i) {
    const auto& v = verdicts[i];
    out += fmt::format("{:<8} {}\n", runs::health_text(v.state), printable(v.sentence));
    for (const auto& e : v.evidence) out += fmt::format("         - {}\n", printable(e));
    if (!v.next.empty()) out += fmt::format("         next: {}\n", printable(v.next));
  }
  if (verdicts.size() > most) out += fmt::format("         and {} more\n", verdicts.size() - most);
  return out;
}

std::string bar(double part) {
  const auto full = static_cast<std::size_t>(std::clamp(std::isfinite(part) ? part : 0.0, 0.0, 1.0) * 10 + 0.5);
  return std::string(full, '#') + std::string(10 - full, '.');
}

Table rank_table(const runs::Summary& s, std::size_t most) {
  Table out{{"RANK", "HOST", "PID", "STATE", "STEP", "NOW", "FOR", "PER STEP", "OWN WORK", "EXPOSED", "LOADER", "MEMORY"}, {}};
  auto ranks = s.ranks;
  if (ranks.size() > most) {
    std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.exposed < b.exposed; });
    ranks.resize(most);
  }
  for (const auto& r : ranks) {
    const bool timed = r.step_us > 0;
    const auto now = r.activity + (r.unit.empty() ? "" : " " + r.unit);
    out.rows.push_back({std::to_string(r.rank), r.host, std::to_string(r.pid), runs::life_text(r.life), std::to_string(r.step),
                        now.empty() ? "-" : now,
                        now.empty() || r.life == runs::Life::kEnded ? "-" : duration_text(static_cast<double>(r.held_us)),
                        timed ? duration_text(r.step_us) : "-", timed ? duration_text(r.own_us) : "-",
                        timed ? bar(r.exposed) + " " + percent(r.exposed) : "-", timed ? percent(r.load) : "-",
                        r.rss > 0 ? bytes_text(static_cast<double>(r.rss)) : "-"});
  }
  return out;
}

Table difference_table(const std::vector<runs::Compared>& compared) {
  Table out{{"ACTIVITY", "UNIT", "BEFORE", "AFTER", "CHANGE", "STEPS"}, {}};
  for (const auto& c : compared) {
    if (c.before_us == 0 && c.after_us == 0) continue;
    const double part = c.change_us() / std::max(c.before_us, 1.0);
    const std::string change =
        !c.differs ? "-"
                   : fmt::format("{}{} ({:+.0f} %)", c.change_us() < 0 ? "-" : "+", duration_text(std::abs(c.change_us())), part * 100);
    out.rows.push_back({c.activity, c.unit.empty() ? "-" : c.unit, duration_text(c.before_us), duration_text(c.after_us), change,
                        std::to_string(c.steps)});
  }
  return out;
}

Table event_table(const runs::Run& run, std::size_t most) {
  struct Row {
    std::int64_t t_us;
    std::string who;
    const runs::Event* event;
  };
  std::vector<Row> rows;
  for (const auto& p : run.processes) {
    const auto who = p.rank() < 0 ? p.facts.role : fmt::format("rank {}", p.rank());
    for (const auto& e : p.events.rows)
      // Leaves out the events that every rank has.
      if (e.kind != "memory" && e.kind != "begin" && e.kind != "note") rows.push_back({e.t_us, who, &e});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.t_us < b.t_us; });
  Table out{{"TIME", "PROCESS", "EVENT", "DETAILS"}, {}};
  for (std::size_t i = rows.size() - std::min(rows.size(), most); i < rows.size(); ++i)
    out.rows.push_back({local_time_text(rows[i].t_us), rows[i].who, rows[i].event->kind, line_of(*rows[i].event)});
  return out;
}

}  // namespace shoal::scheduler::cli
