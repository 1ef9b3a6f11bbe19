// Tests of the causes and outcomes that rows have after an end.
#include <map>
#include <string>

#include "actors/protocol/cluster/exit_code.h"
#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

using EndingsTest = ClusterStateTest;

TEST_F(EndingsTest, ARequestedEndIsNoCrashOfTheWorker) {
  const JobId job = driver();
  join(1, {{"CPU", 3}});
  const auto killed = gang(job, 1, {{"CPU", 1}}), crashed = gang(job, 1, {{"CPU", 1}}), short_of_memory = gang(job, 1, {{"CPU", 1}});
  for (const auto& g : {killed, crashed, short_of_memory}) ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 3u);
  for (const auto& g : {killed, short_of_memory}) ASSERT_TRUE(state_.step(ActorKilled{g.actors[0].id}));
  for (const auto& s : started) {
    const bool is_short = s.message.worker == started[2].message.worker;
    const Error cause = is_short ? unavailable("out of memory").with_reason(actors::kOutOfMemory)
                                 : unavailable("was killed by SIGKILL").with_reason("WorkerDied");
    state_.step(WorkerUpdated{s.node, {s.message.worker, WorkerState::kExited, 1000, "", 137, cause, {}, {}}});
  }
  std::map<WorkerId, std::string> why;
  for (const auto& w : state_.list({actors::ListRequest::What::kWorkers, {}}).workers) why[w.id] = w.cause->message();
  EXPECT_NE(why.at(started[0].message.worker).find("it was killed by shoal.kill"), std::string::npos);
  EXPECT_EQ(why.at(started[1].message.worker), "was killed by SIGKILL");
  EXPECT_EQ(why.at(started[2].message.worker), "out of memory");
}

TEST_F(EndingsTest, ADriverThatReportsAnExceptionFailsItsJob) {
  const NodeId node = join(1, {{"CPU", 1}});
  const JobId failed = driver(), in_order = driver();
  const auto is = [&](NodeId from, std::uint64_t worker, WorkerState state, JobId job, int code = 0, std::optional<Error> cause = {}) {
    state_.step(WorkerUpdated{from, {WorkerId{worker}, state, 100, "", code, cause, job, "driver"}});
  };
  is(node, 55, WorkerState::kRunning, failed);
  is(node, 56, WorkerState::kRunning, in_order);
  is(NodeId{}, 55, WorkerState::kExited, failed, 1, unavailable("its program failed: ValueError: mine"));
  for (const JobId job : {failed, in_order}) state_.step(DriverEnded{job});
  EXPECT_EQ(state_.job(failed)->state, JobState::kFailed);
  EXPECT_EQ(known_exit_code(*state_.job(failed)), 1);
  EXPECT_EQ(state_.job(failed)->cause->message(), "its program failed: ValueError: mine");
  EXPECT_EQ(state_.job(in_order)->state, JobState::kSucceeded);
  EXPECT_FALSE(known_exit_code(*state_.job(in_order)));  // only its parent learns the code
  is(node, 55, WorkerState::kExited, failed, 137, unavailable("driver (pid 100) ended"));
  EXPECT_EQ(known_exit_code(*state_.job(failed)), 1);
}

TEST_F(EndingsTest, OnlyItsNodeReportsTheEndOfAWorkerThatItHasLaunched) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  state_.step(WorkerUpdated{NodeId{}, {s.message.worker, WorkerState::kExited, 1000, "", 1, unavailable("it ends"), job, "driver"}});
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kAlive);
}

// Each round of turns takes time with the length of the queue.
TEST_F(EndingsTest, EntriesArePlacedOnceAfterManyProcessesHaveEnded) {
  join(1, {{"CPU", 2}});
  const JobId job = driver();
  const auto starts_come_last = [&] {
    bool started = false;
    for (const auto& action : actors()) {
      const bool starts = std::holds_alternative<StartWorkerOn>(action);
      if (started && !starts) ADD_FAILURE() << "an end after a start";
      started |= starts;
    }
    EXPECT_TRUE(started);
  };
  const auto refused = gang(job, 2, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{refused}));
  actors();
  for (int i = 0; i < 2; ++i) {
    auto waits = gang(job, 1, {{"CPU", 1}});
    waits.max_restarts = -1;
    ASSERT_TRUE(state_.step(GangRequested{waits}));
  }
  actors();
  state_.step(RequestsUndone{{.actors = {refused.actors[0].id, refused.actors[1].id}}, unavailable("not stored")});
  starts_come_last();
  join(2, {{"CPU", 2}});
  actors();
  state_.step(NodeLost{NodeId{1}, unavailable("silent")});
  starts_come_last();
}

}  // namespace
}  // namespace shoal::scheduler
