#include "fsdp/reshard/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr int kMaxProcess = 1 << 20;

Result<void> check(const Placement& p, const char* which, bool distinct, std::span<const int> hosts) {
  if (p.processes.size() != static_cast<std::size_t>(p.grid.world_size) || p.processes.empty())
    return fail(invalid_argument(fmt::format("the {} mesh has {} ranks, but {} processes", which, p.grid.world_size, p.processes.size())));
  if (p.grid.replicas < 1 || p.grid.world_size % p.grid.replicas != 0)
    return fail(invalid_argument(
        fmt::format("the {} mesh: {} ranks cannot be divided into {} replicas", which, p.grid.world_size, p.grid.replicas)));
  auto sorted = p.processes;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= kMaxProcess)
    return fail(invalid_argument(fmt::format("the {} mesh has a process with a number out of range", which)));
  if (distinct && std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    return fail(invalid_argument(fmt::format("the {} mesh has a process twice", which)));
  if (!hosts.empty() && static_cast<std::size_t>(sorted.back()) >= hosts.size())
    return fail(invalid_argument(fmt::format("process {} of the {} mesh has no host", sorted.back(), which)));
  return {};
}

class Planner {
 public:
  Planner(ReshardPlan& out, const Placement& from, const Placement& to, std::span<const int> hosts)
      : out_(out), from_(from), to_(to), hosts_(hosts) {
    for (std::size_t i = 0; i < from.processes.size(); ++i) has_.emplace(from.processes[i], from.grid.shard_of(static_cast<int>(i)));
  }

  void add(std::size_t parameter) {
    const std::int64_t rows = out_.parameters[parameter].rows;
    for (std::size_t i = 0; i < to_.processes.size(); ++i) {
      const int shard = to_.grid.shard_of(static_cast<int>(i));
      const Rows wanted = rows_of(rows, to_.grid.shards(), Rank{shard});
      for (int old = 0; old < from_.grid.shards(); ++old) {
        const Rows has = rows_of(rows, from_.grid.shards(), Rank{old});
        const Rows both = {std::max(wanted.begin, has.begin), std::min(wanted.end, has.end)};
        if (both.count() > 0) add(parameter, both, old, shard, to_.processes[i]);
      }
    }
  }

 private:
  int host_of(int process) const { return hosts_.empty() ? 0 : hosts_[static_cast<std::size_t>(process)]; }

  void add(std::size_t parameter, Rows rows, int old_shard, int new_shard, int destination) {
    if (has_.contains({destination, old_shard})) {
      out_.kept.push_back({destination, destination, parameter, rows});
      return;
    }
    const int host = host_of(destination);
    int source = best_source(old_shard, host);
    bool relayed = false;
    if (host_of(source) != host) {
      const auto [fetched, first] = fetched_.try_emplace({host, parameter, old_shard, new_shard}, destination);
      if (!first) {
        source = fetched->second;
        relayed = true;
      }
    }
    const Transfer transfer{source, destination, parameter, rows, relayed};
    sent_[source] += out_.bytes(transfer);
    out_.transfers.push_back(transfer);
  }

  // The old owner of a shard that should send to a process on `host`.
  int best_source(int shard, int host) {
    int best = -1;
    const auto rank_of = [&](int process) { return std::tuple(host_of(process) != host, sent_[process], process); };
    for (int replica = 0; replica < from_.grid.replicas; ++replica) {
      const int process = from_.processes[static_cast<std::size_t>(replica * from_.grid.shards() + shard)];
      if (best < 0 || rank_of(process) < rank_of(best)) best = process;
    }
    return best;
  }

  ReshardPlan& out_;
  const Placement& from_;
  const Placement& to_;
  const std::span<const int> hosts_;
  std::set<std::pair<int, int>> has_;  // a process and a shard that it has
  std::map<int, std::size_t> sent_;
  // The process of a host that fetches rows from another host, by host, parameter, old and new shard.
  std::map<std::tuple<int, std::size_t, int, int>, int> fetched_;
};

}  // namespace

Result<ReshardPlan> plan_reshard(std::vector<MovedRows> parameters, const Placement& from, const Placement& to,
                                 std::span<const int> host_of_process) {
  SHOAL_OK(check(from, "old", /*distinct=*/false, host_of_process));
  SHOAL_OK(check(to, "new", /*distinct=*/true, host_of_process));
  ReshardPlan out;
  out.parameters = std::move(parameters);
  for (const auto& p : out.parameters) {
    if (p.rows < 0) return fail(invalid_argument(fmt::format("parameter {} has {} rows", p.name, p.rows)));
  }
  Planner planner(out, from, to, host_of_process);
  for (std::size_t i = 0; i < out.parameters.size(); ++i) planner.add(i);
  const int last = std::max(*std::max_element(from.processes.begin(), from.processes.end()),
                            *std::max_element(to.processes.begin(), to.processes.end()));
  const auto order = [n = last + 1](const Transfer& t) {
    return std::tuple(t.relayed, (t.destination - t.source + n) % n, t.source, t.parameter, t.rows.begin);
  };
  std::sort(out.transfers.begin(), out.transfers.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return out;
}

std::size_t ReshardPlan::moved_bytes() const {
  std::size_t out = 0;
  for (const auto& t : transfers) out += bytes(t);
  return out;
}

std::size_t ReshardPlan::kept_bytes() const {
  std::size_t out = 0;
  for (const auto& t : kept) out += bytes(t);
  return out;
}

std::string ReshardPlan::table() const {
  std::map<std::pair<int, int>, std::pair<std::size_t, std::size_t>> pairs;  // number of transfers and bytes
  for (const auto& t : transfers) {
    auto& [count, sum] = pairs[{t.source, t.destination}];
    ++count;
    sum += bytes(t);
  }
  std::string out = fmt::format("{} transfers, {} bytes moved, {} bytes kept\n", transfers.size(), moved_bytes(), kept_bytes());
  for (const auto& [pair, total] : pairs)
    out += fmt::format("rank {:>3} -> rank {:>3}: {:>6} transfers, {:>14} bytes\n", pair.first, pair.second, total.first, total.second);
  for (const auto& t : transfers)
    out += fmt::format("  {:>3} -> {:>3}  rows {:>9} to {:>9}  {:>12} bytes  {}{}\n", t.source, t.destination, t.rows.begin, t.rows.end,
                       bytes(t), parameters[t.parameter].name, t.relayed ? " (relayed)" : "");
  return out;
}

}  // namespace shoal::fsdp
