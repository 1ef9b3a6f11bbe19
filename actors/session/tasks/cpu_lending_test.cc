#include "actors/session/tasks/task_pool_fixture.h"

namespace shoal::actors {
namespace {

// A pool whose workers lend CPUs, to a fake head that gives them back if `room_` is true.
class LendingTaskPoolTest : public TaskPoolTest {
 protected:
  LendingTaskPoolTest() {
    pool_.lend({.lend = [this](ActorId id) { lent_.insert(id); },
                .resume =
                    [this](ActorId id, std::function<void(bool)> done) {
                      ++asked_;
                      if (room_) lent_.erase(id);
                      done(room_);
                    }});
  }
  std::set<ActorId> lent_;
  bool room_ = true;
  int asked_ = 0;
};

TEST_F(LendingTaskPoolTest, AWorkerWithoutWorkLendsItsCpusAndHasThemAgainBeforeItsNextTask) {
  worker(kA);
  submit("a");
  pass(100ms);
  EXPECT_TRUE(lent_.empty());
  returns("a");
  submit("b");  // the worker was idle for no time
  returns("b");
  EXPECT_EQ(asked_, 0);
  pass(100ms);
  EXPECT_EQ(lent_, std::set<ActorId>{kA});
  submit("c");
  EXPECT_EQ(running(), "1:c");
  EXPECT_TRUE(lent_.empty());
}

TEST_F(LendingTaskPoolTest, AWorkerWithoutItsLentCpusRunsNothingAndAnotherIsRequested) {
  worker(kA);
  pass(100ms);
  EXPECT_EQ(lent_, std::set<ActorId>{kA});
  room_ = false;
  submit("a");
  EXPECT_EQ(running(), "");
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);  // the lent CPUs may come back soon
  pass(70ms);
  EXPECT_EQ(asked_, 4);
  EXPECT_FALSE(pool_.take_wants(1h).alone);
  pass(10ms);
  const auto wants = pool_.take_wants(1h);
  EXPECT_TRUE(wants.alone && !wants.empty);
  EXPECT_EQ(wants.workers, 1u);
  room_ = true;
  pass(100ms);
  EXPECT_EQ(running(), "1:a");
  EXPECT_FALSE(pool_.take_wants(1h).alone);
}

TEST_F(LendingTaskPoolTest, NoMoreWorkersAreRequestedThanTasksWait) {
  worker(kA);
  worker(kB);
  pass(100ms);
  EXPECT_EQ(lent_.size(), 2u);
  submit("a");
  EXPECT_EQ(lent_.size(), 1u);
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
}

}  // namespace
}  // namespace shoal::actors
