// The plan of a change of meshes: small cases by hand, and random meshes from a seed, compared with plain loops over rows.
//
// Invariants: each row of the new mesh arrives once, from a process that has it; no plan moves fewer bytes, in all or between hosts; in a
// round, no process has two partners in one direction.
//
// A failing seed is replayed by its number: bazel test --test_env=SHOAL_SEED=N //fsdp/reshard:plan_test
#include "fsdp/reshard/plan.h"

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "runtime/sim/seeds.h"

namespace shoal::fsdp {
namespace {

Placement one_row(std::vector<int> processes) { return {Grid(static_cast<int>(processes.size())), std::move(processes)}; }

TEST(ReshardPlan, KeepsWhatIsInPlaceAndMovesTheRest) {
  const auto plan = plan_reshard({{"w", 8, 10}}, one_row({0, 1}), one_row({0, 1, 2, 3})).value();
  EXPECT_EQ(plan.kept, (std::vector<Transfer>{{0, 0, 0, {0, 2}}}));
  EXPECT_EQ(plan.transfers, (std::vector<Transfer>{{0, 1, 0, {2, 4}}, {1, 2, 0, {4, 6}}, {1, 3, 0, {6, 8}}}));
  EXPECT_EQ(plan.moved_bytes(), 60u);
  EXPECT_EQ(plan.kept_bytes(), 20u);
}

TEST(ReshardPlan, UnevenRowsAndRanksThatOwnNothing) {
  const auto plan = plan_reshard({{"b", 3, 4}, {"none", 0, 4}}, one_row({5, 2}), one_row({2, 5, 7, 1})).value();
  // Process 5 has rows 0 and 1, process 2 has row 2. On the new mesh process 2 gets row 0, 5 gets 1, 7 gets 2, and 1 gets none.
  EXPECT_EQ(plan.kept, (std::vector<Transfer>{{5, 5, 0, {1, 2}}}));
  EXPECT_EQ(plan.transfers, (std::vector<Transfer>{{2, 7, 0, {2, 3}}, {5, 2, 0, {0, 1}}}));
}

TEST(ReshardPlan, TheSameMeshMovesNothing) {
  const auto plan = plan_reshard({{"w", 7, 4}}, one_row({3, 1, 2}), one_row({3, 1, 2})).value();
  EXPECT_TRUE(plan.transfers.empty());
  EXPECT_EQ(plan.kept_bytes(), 28u);
}

TEST(ReshardPlan, OneReplicaOfAHostFetchesForTheOthers) {
  // Old: process 0 on host 0. New: two replicas of one shard, both on host 1.
  const std::vector<int> hosts = {0, 1, 1};
  const auto plan = plan_reshard({{"w", 4, 1}}, one_row({0}), {Grid(2, 2), {1, 2}}, hosts).value();
  EXPECT_EQ(plan.transfers, (std::vector<Transfer>{{0, 1, 0, {0, 4}}, {1, 2, 0, {0, 4}, true}}));
}

TEST(ReshardPlan, TheTableNamesRanksRowsAndBytes) {
  const auto table = plan_reshard({{"head.weight", 8, 10}}, one_row({0}), one_row({0, 1})).value().table();
  EXPECT_NE(table.find("1 transfers, 40 bytes moved, 40 bytes kept"), std::string::npos) << table;
  EXPECT_NE(table.find("head.weight"), std::string::npos) << table;
}

TEST(ReshardPlan, OneProcessMayBringSeveralShards) {
  const auto plan = plan_reshard({{"w", 4, 1}}, one_row({0, 0}), one_row({0, 1})).value();
  EXPECT_EQ(plan.transfers, (std::vector<Transfer>{{0, 1, 0, {2, 4}}}));
}

TEST(ReshardPlan, RefusesPlacementsThatAreNone) {
  EXPECT_FALSE(plan_reshard({}, one_row({0}), one_row({0, 0})));
  EXPECT_FALSE(plan_reshard({}, one_row({0}), {Grid(2), {0}}));
  EXPECT_FALSE(plan_reshard({}, one_row({}), one_row({0})));
  EXPECT_FALSE(plan_reshard({}, one_row({0}), {Grid(3, 2), {0, 1, 2}}));
  EXPECT_FALSE(plan_reshard({}, one_row({-1}), one_row({0})));
  EXPECT_FALSE(plan_reshard({{"w", -1, 4}}, one_row({1}), one_row({0})));
  EXPECT_FALSE(plan_reshard({}, one_row({0}), one_row({2}), std::vector<int>{0, 0}));
}

// ---- random meshes, compared with plain loops over rows ----

constexpr std::uint64_t kSeeds = 2000;

std::string replay(std::uint64_t seed) {
  return "replay it: bazel test --test_env=SHOAL_SEED=" + std::to_string(seed) + " //fsdp/reshard:plan_test";
}

struct Case {
  std::vector<MovedRows> parameters;
  Placement from{1, {}}, to{1, {}};
  std::vector<int> hosts;
};

Placement random_placement(std::mt19937& random, int num_processes) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<int> all(static_cast<std::size_t>(num_processes));
  for (int i = 0; i < num_processes; ++i) all[static_cast<std::size_t>(i)] = i;
  std::shuffle(all.begin(), all.end(), random);
  const int replicas = 1 + below(3);
  const int shards = 1 + below(std::max(1, num_processes / replicas));
  const int size = std::min(replicas * shards, num_processes / replicas * replicas);
  all.resize(static_cast<std::size_t>(std::max(size, replicas)));
  return {Grid(static_cast<int>(all.size()), replicas), all};
}

Case random_case(std::uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  Case c;
  const int num_processes = 3 + static_cast<int>(random() % 9);
  for (unsigned i = 0; i < 1 + random() % 4; ++i)
    c.parameters.push_back({"p" + std::to_string(i), static_cast<std::int64_t>(random() % 40), random() % 3 * 4});
  c.from = random_placement(random, num_processes);
  c.to = random_placement(random, num_processes);
  for (int i = 0; i < num_processes; ++i) c.hosts.push_back(static_cast<int>(random() % 3));
  return c;
}

using Owned = std::set<std::tuple<int, std::size_t, std::int64_t>>;  // process, parameter, row

Owned owned(const Case& c, const Placement& placement) {
  Owned out;
  for (std::size_t i = 0; i < placement.processes.size(); ++i) {
    for (std::size_t p = 0; p < c.parameters.size(); ++p) {
      const Rows rows = rows_of(c.parameters[p].rows, placement.grid.shards(), Rank{placement.grid.shard_of(static_cast<int>(i))});
      for (auto row = rows.begin; row < rows.end; ++row) out.emplace(placement.processes[i], p, row);
    }
  }
  return out;
}

void expect_complete_and_minimal(const Case& c) {
  const auto plan = plan_reshard(c.parameters, c.from, c.to, c.hosts).value();
  const Owned before = owned(c, c.from), after = owned(c, c.to);
  Owned covered;
  std::size_t moved = 0, between_hosts = 0;
  const auto host = [&](int process) { return c.hosts[static_cast<std::size_t>(process)]; };
  const auto cover = [&](const Transfer& t) {
    for (auto row = t.rows.begin; row < t.rows.end; ++row) {
      const auto& source = t.relayed ? covered : before;
      EXPECT_TRUE(source.contains({t.source, t.parameter, row})) << "rank " << t.source << " has no row " << row;
      EXPECT_TRUE(covered.emplace(t.destination, t.parameter, row).second) << "row " << row << " arrives twice";
      if (t.source == t.destination) continue;
      moved += c.parameters[t.parameter].row_bytes;
      if (host(t.source) != host(t.destination)) between_hosts += c.parameters[t.parameter].row_bytes;
    }
  };
  for (const auto& t : plan.kept) {
    EXPECT_EQ(t.source, t.destination);
    cover(t);
  }
  for (const auto& t : plan.transfers) {
    EXPECT_NE(t.source, t.destination);
    cover(t);
  }
  EXPECT_EQ(covered, after);
  EXPECT_EQ(moved, plan.moved_bytes());

  std::size_t least = 0, least_between_hosts = 0;
  std::set<std::tuple<int, std::size_t, std::int64_t>> hosts_have, hosts_need;
  for (const auto& [process, p, row] : before) hosts_have.emplace(host(process), p, row);
  for (const auto& [process, p, row] : after) {
    if (!before.contains({process, p, row})) least += c.parameters[p].row_bytes;
    if (!hosts_have.contains({host(process), p, row})) hosts_need.emplace(host(process), p, row);
  }
  for (const auto& [_, p, row] : hosts_need) least_between_hosts += c.parameters[p].row_bytes;
  EXPECT_EQ(moved, least);
  EXPECT_EQ(between_hosts, least_between_hosts);
}

TEST(ReshardPlan, CoversEveryNewRowOnceWithTheFewestBytesForAnyMeshes) {
  for (const std::uint64_t seed : runtime::seeds(kSeeds)) {
    SCOPED_TRACE(replay(seed));
    expect_complete_and_minimal(random_case(seed));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ReshardPlan, EachProcessSendsToOneAndReceivesFromOneAtATime) {
  // Transfers of equal distance form a round. In a round, no process has two partners in one direction.
  for (const std::uint64_t seed : runtime::seeds(kSeeds)) {
    const Case c = random_case(seed);
    const auto plan = plan_reshard(c.parameters, c.from, c.to, c.hosts).value();
    const int n = 1 + std::max(*std::max_element(c.from.processes.begin(), c.from.processes.end()),
                               *std::max_element(c.to.processes.begin(), c.to.processes.end()));
    std::map<std::tuple<bool, int, int>, int> to;
    std::tuple<bool, int> last{false, 0};
    for (const auto& t : plan.transfers) {
      const std::tuple round{t.relayed, (t.destination - t.source + n) % n};
      ASSERT_LE(last, round) << replay(seed);
      last = round;
      const auto [partner, first] = to.try_emplace({t.relayed, std::get<1>(round), t.source}, t.destination);
      ASSERT_TRUE(first || partner->second == t.destination) << replay(seed);
    }
  }
}

}  // namespace
}  // namespace shoal::fsdp
