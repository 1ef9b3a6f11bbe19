// Fixture of the cluster state's tests. Each step checks the invariants (ClusterState::check_invariants), and that the stored rows are
// those in memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using namespace std::chrono_literals;
using actors::ActorState;
using actors::GangSpec;
using actors::JobState;
using actors::Launch;
using actors::Resources;
using actors::WorkerState;
using actors::WorkerUpdate;

inline Resources of(const std::map<std::string, double>& amounts) { return Resources::from_amounts(amounts).value(); }

// Drives a cluster: nodes join and fall silent, workers start and die.
class ClusterStateTest : public testing::Test {
 protected:
  ClusterStateTest() { pass(0s); }
  ~ClusterStateTest() override { check(); }

  // Checks the invariants, and that a head restored from the store has the same rows.
  void check() {
    state_.check_invariants();
    const auto changes = state_.take_changes();
    for (const auto& r : changes) EXPECT_LE(r.bytes.size(), actors::RowBounds::kMaxRecord) << to_string(r.table) << " " << r.name;
    store_->commit(changes, [](Result<void> r) { EXPECT_TRUE(r); });
    runtime::SeededRandom random{2};
    ClusterState again({}, random);
    again.advance(now_, unix_ms_);
    again.restore(store_->load().value());
    ASSERT_TRUE(again.set_aside().empty()) << to_string(again.set_aside()[0]);
    again.check_invariants();
    auto there = state_.all_records();
    const auto kept = again.all_records();
    std::erase_if(there, [&](const Record& r) {  // a ShardActor of an incomplete gang, which its process requests again
      return r.table == TableName::kActors && r.state == "PENDING" && again.actor(ActorId{r.id}) == nullptr;
    });
    ASSERT_EQ(there.size(), kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(there[i].id, kept[i].id);
      EXPECT_TRUE(there[i].bytes.view() == kept[i].bytes.view()) << to_string(kept[i].table) << " " << kept[i].name;
    }
  }

  void pass(runtime::Duration time) {
    now_ += time;
    unix_ms_ += std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    state_.advance(now_, unix_ms_);
  }
  NodeId join(std::uint64_t id, const std::map<std::string, double>& has) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.host = "127.0.0.1";
    n.resources = of(has);
    EXPECT_TRUE(state_.step(NodeJoined{n}));
    return n.id;
  }
  JobId driver() {
    const JobId job = state_.step(DriverJoined{{"script.py", 100, {}}});
    actors();  // ignored
    return job;
  }
  GangSpec gang(JobId job, int count, const std::map<std::string, double>& each, bool refuse = false) {
    GangSpec g;
    g.id = GangId{next_id_++};
    g.job = job;
    for (int i = 0; i < count; ++i) g.actors.push_back({ActorId{next_id_++}, "A", of(each)});
    g.refuse_infeasible = refuse;
    return g;
  }
  // The actions since the last call.
  std::vector<Action> actors() {
    check();
    return state_.take_actions();
  }
  template <class T>
  std::vector<T> taken() {
    std::vector<T> out;
    for (auto& a : actors()) {
      if (auto* t = std::get_if<T>(&a)) out.push_back(std::move(*t));
    }
    return out;
  }
  void ready(const StartWorkerOn& s) {
    state_.step(WorkerUpdated{s.node, {s.message.worker, WorkerState::kRunning, 1000, "unix:@w", 0, {}, {}, {}}});
  }
  void dies(const StartWorkerOn& s, int shell_code, const std::string& how) {
    std::optional<Error> cause;
    if (shell_code) cause = unavailable(how);
    state_.step(WorkerUpdated{s.node, {s.message.worker, WorkerState::kExited, 1000, "", shell_code, cause, {}, {}}});
  }
  ActorState state_of(ActorId id) { return state_.actor(id)->state; }

  runtime::SeededRandom random_{1};
  ClusterState state_{{}, random_};
  runtime::TimePoint now_{};
  std::int64_t unix_ms_ = 0;
  std::uint64_t next_id_ = 100;
  const std::unique_ptr<Store> store_ = make_memory_store();
};

}  // namespace shoal::scheduler
