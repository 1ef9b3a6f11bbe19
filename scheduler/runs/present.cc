#include "scheduler/runs/present.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace shoal::scheduler::runs {

using runtime::StepRow;

namespace {

constexpr std::size_t kMostCells = 400'000;
constexpr std::size_t kLeastTableSteps = 64;

std::int64_t begin_us(const Process& p) {
  if (p.live) return p.live->start_us;
  return p.facts.start_us;
}

int generation_of(const Process& p) {
  const int of_rows = p.steps.rows.empty() ? 1 : p.steps.rows.back().generation;
  return std::max(of_rows, p.live ? p.live->generation : 1);
}

int world_of(const Process& p) {
  if (p.live && p.live->generation >= generation_of(p)) return p.live->world;
  return p.steps.rows.empty() ? p.facts.world : p.steps.rows.back().world;
}

// Steps that a process has ended, as far as it has shown.
std::uint64_t shown_step(const Process& p) {
  return std::max(p.steps.rows.empty() ? 0 : p.steps.rows.back().step, p.live ? p.live->step : 0);
}

bool lives(const Process& p) { return p.life == Life::kAlive || p.life == Life::kSilent; }

}  // namespace

std::uint64_t reached_step(const Rank& rank, const std::vector<Rank>& ranks) {
  std::optional<std::uint64_t> others;  // the fewest steps that one of the other ranks has ended
  for (const auto& r : ranks) {
    if (r.rank == rank.rank || generation_of(*r.process) != generation_of(*rank.process)) continue;
    others = std::min(others.value_or(shown_step(*r.process)), shown_step(*r.process));
  }
  return std::max(shown_step(*rank.process), others.value_or(0));
}

std::int64_t newest_us(const Process& p) {
  std::int64_t out = begin_us(p);
  if (p.live) out = std::max(out, p.live->beat_us);
  if (!p.steps.rows.empty()) out = std::max(out, p.steps.rows.back().end_us);
  if (!p.samples.rows.empty()) out = std::max(out, p.samples.rows.back().t_us);
  return out;
}

double held_us(const Process& p) { return p.live ? static_cast<double>(std::max<std::int64_t>(p.live->beat_us - p.live->since_us, 0)) : 0; }

std::vector<Rank> present_ranks(const Run& run) {
  std::map<int, const Process*> newest;
  int generation = 1;
  for (const auto& p : run.processes) {
    if (p.rank() < 0) continue;
    auto& at = newest[p.rank()];
    // A process that lives counts before one that does not, then the newer one.
    if (at == nullptr || std::make_pair(lives(p), newest_us(p)) > std::make_pair(lives(*at), newest_us(*at))) at = &p;
  }
  // Processes that ended before the first living one began belong to an earlier attempt.
  std::int64_t first_begin = 0;
  bool any_lives = false;
  for (const auto& [rank, p] : newest) {
    if (!lives(*p)) continue;
    first_begin = any_lives ? std::min(first_begin, begin_us(*p)) : begin_us(*p);
    any_lives = true;
  }
  if (!any_lives && !newest.empty()) {
    const auto last = std::max_element(newest.begin(), newest.end(),
                                       [](const auto& a, const auto& b) { return newest_us(*a.second) < newest_us(*b.second); });
    first_begin = begin_us(*last->second);
  }
  std::erase_if(newest, [&](const auto& entry) { return !lives(*entry.second) && newest_us(*entry.second) < first_begin; });
  // The newest generation decides how many ranks there are.
  int world = 0;
  for (const auto& [rank, p] : newest) {
    if (world == 0 || generation_of(*p) > generation) generation = generation_of(*p), world = world_of(*p);
  }
  std::vector<Rank> out;
  for (const auto& [rank, p] : newest)
    if (world <= 0 || rank < world) out.push_back({rank, p});
  return out;
}

StepTable step_table(const std::vector<Rank>& ranks) {
  StepTable out;
  out.ranks = ranks;
  std::erase_if(out.ranks, [](const Rank& r) { return r.process->steps.rows.empty(); });
  out.rows.resize(out.ranks.size());
  if (out.ranks.empty()) return out;
  int generation = 1;
  for (const auto& r : out.ranks) generation = std::max(generation, r.process->steps.rows.back().generation);
  const std::size_t most = std::clamp(kMostCells / out.ranks.size(), kLeastTableSteps, kMostTableSteps);

  // Rows of single steps of this generation, newest first, down to a row that sums several steps or is of another generation.
  std::vector<std::vector<const StepRow*>> single(out.ranks.size());
  std::uint64_t first = 0;  // in the steps before it some rank was still warming up
  for (std::size_t k = 0; k < out.ranks.size(); ++k) {
    const auto& rows = out.ranks[k].process->steps.rows;
    auto& of = single[k];
    of.reserve(most + kWarmUpSteps);
    std::size_t at = rows.size();
    bool begins = true;  // an earlier row is of another generation, or of an earlier training of this process
    for (; at > 0 && of.size() < most + kWarmUpSteps; --at) {
      const auto& row = rows[at - 1];
      if (row.generation != generation || (!of.empty() && row.step >= of.back()->step)) break;
      if (row.steps != 1) {
        begins = false;
        break;
      }
      of.push_back(&row);
    }
    begins = begins && (at == 0 || of.size() < most + kWarmUpSteps);
    if (of.empty()) return out;
    if (begins) first = std::max(first, of.back()->step + kWarmUpSteps);
    std::reverse(of.begin(), of.end());
  }
  // Joins the ranks' rows by the number of the step. Only steps that all ranks have are kept.
  std::vector<std::size_t> at(single.size());
  for (const auto* row : single[0]) {
    if (row->step < first) continue;
    bool all = true;
    for (std::size_t k = 0; k < single.size(); ++k) {
      while (at[k] < single[k].size() && single[k][at[k]]->step < row->step) ++at[k];
      all = all && at[k] < single[k].size() && single[k][at[k]]->step == row->step;
    }
    if (!all) continue;
    out.steps.push_back(row->step);
    out.end_us.push_back(row->end_us);
    for (std::size_t k = 0; k < single.size(); ++k) out.rows[k].push_back(single[k][at[k]]);
  }
  return out;
}

std::string host_of(const Rank& rank) { return rank.process->facts.host; }

std::vector<std::string> hosts_of(const std::vector<Rank>& ranks) {
  std::set<std::string> out;
  for (const auto& r : ranks) out.insert(host_of(r));
  return {out.begin(), out.end()};
}

std::string name_of(const Rank& rank, const std::vector<Rank>& ranks) {
  const auto host = host_of(rank);
  if (host.empty() || hosts_of(ranks).size() < 2) return fmt::format("rank {}", rank.rank);
  return fmt::format("rank {} on host {}", rank.rank, host);
}

std::string stack_command(const Rank& rank) {
  const auto& p = *rank.process;
  return fmt::format("shoal stack {}{}", p.live ? p.live->pid : p.facts.pid,
                     p.on_this_host ? "" : "  # on host " + shell_word(host_of(rank)));
}

std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("-._/:@%+=,").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string duration_text(double us) {
  if (us < 1000) return fmt::format("{:.0f} us", us);
  if (us < 10'000) return fmt::format("{:.1f} ms", us / 1000);
  if (us < 1e6) return fmt::format("{:.0f} ms", us / 1000);
  if (us < 10e6) return fmt::format("{:.1f} s", us / 1e6);
  if (us < 600e6) return fmt::format("{:.0f} s", us / 1e6);
  if (us < 7200e6) return fmt::format("{:.0f} min", us / 60e6);
  if (us < 72 * 3600e6) return fmt::format("{:.1f} h", us / 3600e6);
  return fmt::format("{:.0f} days", us / 86400e6);
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return unit == 0 || bytes >= 100 ? fmt::format("{:.0f} {}", bytes, units[unit]) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

}  // namespace shoal::scheduler::runs
