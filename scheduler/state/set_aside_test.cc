// Rows that the store has lost, or that cannot be read.
#include <algorithm>
#include <optional>

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class SetAsideTest : public ClusterStateTest {
 protected:
  // A cluster with rows of all kinds, some of which refer to others.
  void SetUp() override {
    job_ = driver();
    join(1, {{"CPU", 8}});
    join(2, {{"CPU", 2}});
    restarts_ = gang(job_, 1, {{"CPU", 1}});
    restarts_.max_restarts = -1;
    restarts_.name = "restarts";
    start(restarts_);
    child_ = gang(job_, 1, {{"CPU", 1}});
    child_.creator = workers_.at(0);
    start(child_);
    pair_ = gang(job_, 2, {{"CPU", 1}});
    start(pair_);
    actors::GroupSpec group;
    group.id = GroupId{5};
    group.job = job_;
    group.name = "group";
    group.bundles = {of({{"CPU", 2}})};
    ASSERT_TRUE(state_.step(GroupRequested{group}));
    grouped_ = gang(job_, 1, {{"CPU", 1}});
    grouped_.where.group = group.id;
    start(grouped_);
    auto detached = gang(job_, 1, {});
    detached.detached = true;
    detached.name = "detached";
    start(detached);
    detached_waits_ = gang(job_, 1, {{"absent", 1}});
    detached_waits_.detached = true;
    ASSERT_TRUE(state_.step(GangRequested{detached_waits_}));
    actors::JobSpec ranks;
    ranks.num_workers = 2;
    ranks.resources = of({{"CPU", 1}});
    submitted_ = state_.step(JobSubmitted{ranks}).value();
    state_.step(PortFound{submitted_, 5});
    for (const auto& s : taken<StartWorkerOn>()) {
      ranks_.push_back(s);
      ready(s);
    }
    waits_ = gang(job_, 2, {{"absent", 1}});
    ASSERT_TRUE(state_.step(GangRequested{waits_}));
    actors::JobSpec waiting;
    waiting.name = "waits";
    waiting.resources = of({{"absent", 1}});
    waiting.wait = true;
    ASSERT_TRUE(state_.step(JobSubmitted{waiting}));
    check();
    records_ = store_->load().value();
  }
  void start(const GangSpec& gang) {
    ASSERT_TRUE(state_.step(GangRequested{gang}));
    for (const auto& s : taken<StartWorkerOn>()) {
      workers_.push_back(s.message.worker);
      ready(s);
    }
  }
  void restore(const std::vector<Record>& records) {
    random_again_.emplace(7);
    again_.emplace(ClusterState::Options(), *random_again_);
    again_->advance(now_, unix_ms_);
    again_->restore(records);
    again_->check_invariants();
    again_->take_actions();
  }
  void join_again(std::uint64_t id) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.host = "127.0.0.1";
    n.resources = of({{"CPU", 8}, {"absent", 8}});
    (void)again_->step(NodeJoined{n});  // a node whose row was lost is refused, and comes back under another id
  }
  // Restores a head, lets nodes and work come, and checks that nothing breaks.
  void serve(const std::vector<Record>& records) {
    restore(records);
    for (const std::uint64_t id : {1, 2, 3}) {
      join_again(id);
      for (const WorkerId w : workers_)
        again_->step(WorkerUpdated{NodeId{id}, {w, WorkerState::kRunning, 1000, "unix:@w", 0, {}, job_, {}}});
      again_->step(NodeBeat{NodeId{id}});
      again_->check_invariants();
    }
    again_->advance(now_ + 1s, unix_ms_ + 1000);
    again_->step(Tick{});
    (void)again_->status();
    (void)again_->metrics();
    again_->check_invariants();
    const JobId more = again_->step(DriverJoined{{"more.py", 7, {}}});
    ASSERT_TRUE(again_->step(GangRequested{gang(more, 1, {{"CPU", 1}})}));
    again_->check_invariants();
    auto store = make_memory_store();  // the next head has nothing to set aside
    store->commit(records, [](Result<void>) {});
    store->commit(again_->take_changes(), [](Result<void>) {});
    ClusterState next({}, *random_again_);
    next.restore(store->load().value());
    EXPECT_TRUE(next.set_aside().empty()) << to_string(next.set_aside()[0]);
    next.check_invariants();
  }
  static std::vector<Record> copy(const std::vector<Record>& records) {
    std::vector<Record> out;
    for (const auto& r : records) out.push_back({r.table, r.id, r.name, r.state, r.bytes.clone()});
    return out;
  }
  const SetAside* aside(TableName table, std::uint64_t id) const {
    for (const auto& row : again_->set_aside()) {
      if (row.table == table && row.id == id) return &row;
    }
    return nullptr;
  }

  // All records but these.
  std::vector<Record> without(TableName table, const std::vector<std::uint64_t>& ids) const {
    auto records = copy(records_);
    std::erase_if(records, [&](const Record& r) { return r.table == table && std::ranges::count(ids, r.id) > 0; });
    return records;
  }

  JobId job_, submitted_;
  GangSpec restarts_, child_, pair_, grouped_, waits_, detached_waits_;
  std::vector<WorkerId> workers_;
  std::vector<StartWorkerOn> ranks_;
  std::vector<Record> records_;
  std::optional<runtime::SeededRandom> random_again_;
  std::optional<ClusterState> again_;
};

TEST_F(SetAsideTest, AnyRowThatCannotBeReadOrIsMissingIsSetAsideAndTheRestIsServed) {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    SCOPED_TRACE(std::string(to_string(records_[i].table)) + " " + records_[i].name);
    auto unreadable = copy(records_);
    unreadable[i].bytes = Bytes::copy_of("none");
    serve(unreadable);
    ASSERT_TRUE(aside(records_[i].table, records_[i].id));
    EXPECT_TRUE(aside(records_[i].table, records_[i].id)->bytes.view() == "none");
    auto other = copy(records_);
    other[i].bytes = records_[i == 0 ? 1 : 0].bytes.clone();  // readable, but the record of another row
    serve(other);
    auto missing = copy(records_);
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    serve(missing);
    for (std::size_t j = 0; j < i; ++j) {
      auto both = copy(unreadable);
      both[j].bytes = Bytes::copy_of("none");
      serve(both);
    }
  }
}

TEST_F(SetAsideTest, WhatNeededALostRowEndsWithTheReason) {
  const auto serve_without = [&](TableName table, std::uint64_t id) {
    auto records = copy(records_);
    for (auto& r : records) {
      if (r.table == table && r.id == id) r.bytes = Bytes::copy_of("none");
    }
    serve(records);
  };
  const auto why = [&](const GangSpec& gang) { return again_->actor(gang.actors[0].id)->cause.value_or(internal("none")).reason(); };
  serve_without(TableName::kActors, restarts_.actors[0].id.value);
  EXPECT_EQ(again_->actor(restarts_.actors[0].id)->state, ActorState::kDead);
  EXPECT_EQ(why(restarts_), "RowSetAside");
  EXPECT_EQ(again_->find({"restarts", ""}).error().reason(), "NoSuchName");
  EXPECT_EQ(again_->actor(pair_.actors[0].id)->state, ActorState::kAlive);
  serve_without(TableName::kActors, waits_.actors[1].id.value);
  EXPECT_EQ(again_->actor(waits_.actors[0].id)->state, ActorState::kDead);
  serve_without(TableName::kGangs, waits_.id.value);
  EXPECT_EQ(why(waits_), "RowSetAside");
  serve_without(TableName::kGangs, detached_waits_.id.value);
  EXPECT_EQ(why(detached_waits_), "RowSetAside");
  EXPECT_EQ(again_->job(again_->actor(detached_waits_.actors[0].id)->job)->state, JobState::kFailed);
  serve_without(TableName::kWorkers, workers_[0].value);
  EXPECT_EQ(again_->actor(restarts_.actors[0].id)->num_restarts, 1u);
  EXPECT_EQ(again_->actor(child_.actors[0].id)->state, ActorState::kDead);
  serve_without(TableName::kGroups, 5);
  EXPECT_EQ(again_->actor(grouped_.actors[0].id)->state, ActorState::kDead);
  serve_without(TableName::kJobs, job_.value);
  EXPECT_EQ(again_->job(job_)->state, JobState::kFailed);
  EXPECT_EQ(again_->job(job_)->cause->reason(), "RowSetAside");
  serve_without(TableName::kNodes, 1);
  EXPECT_EQ(again_->node(NodeId{1})->state, actors::NodeState::kDead);
  EXPECT_EQ(again_->status().num_set_aside, 1u);
  EXPECT_NE(again_->status().set_aside.at(0).find("nodes 0000000000000001 (127.0.0.1)"), std::string::npos);
}

TEST_F(SetAsideTest, ActorsThatWaitEndWithoutTheirGang) {
  serve(without(TableName::kGangs, {waits_.id.value, detached_waits_.id.value}));
  for (const auto& gang : {waits_, detached_waits_}) {
    const auto* const actor = again_->actor(gang.actors[0].id);
    ASSERT_TRUE(actor != nullptr && actor->cause);
    EXPECT_EQ(actor->cause->reason(), "RowSetAside");
  }
  const auto* const job = again_->job(again_->actor(detached_waits_.actors[0].id)->job);
  EXPECT_EQ(job->state, JobState::kFailed);
  EXPECT_EQ(job->cause->reason(), "RowSetAside");
}

TEST_F(SetAsideTest, AJobRunsUntilEachOfItsProcessesHasEnded) {
  restore(without(TableName::kWorkers, {ranks_[0].message.worker.value}));
  for (const std::uint64_t id : {1, 2}) join_again(id);
  const auto reports = [&](const StartWorkerOn& rank, WorkerState state) {
    again_->step(WorkerUpdated{rank.node, {rank.message.worker, state, 1000, "unix:@w", 0, {}, submitted_, {}}});
  };
  for (const auto& rank : ranks_) reports(rank, WorkerState::kRunning);
  reports(ranks_[0], WorkerState::kExited);
  EXPECT_EQ(again_->job(submitted_)->state, JobState::kRunning);
  reports(ranks_[1], WorkerState::kExited);
  EXPECT_EQ(again_->job(submitted_)->state, JobState::kSucceeded);
}

TEST_F(SetAsideTest, AJobFailsIfNoneOfItsProcessesHasARow) {
  serve(without(TableName::kWorkers, {ranks_[0].message.worker.value, ranks_[1].message.worker.value}));
  EXPECT_EQ(again_->job(submitted_)->state, JobState::kFailed);
  ASSERT_TRUE(again_->job(submitted_)->cause);
  EXPECT_EQ(again_->job(submitted_)->cause->reason(), "RowSetAside");
}

}  // namespace
}  // namespace shoal::scheduler
