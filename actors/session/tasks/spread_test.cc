#include "actors/session/tasks/task_pool_fixture.h"

namespace shoal::actors {
namespace {

// A pool that spreads tasks. Workers with odd ids are on node 1, the others on node 2.
class SpreadTest : public TaskPoolTest {
 protected:
  SpreadTest() { pool_.spread(&SpreadTest::node_of); }
  static NodeId node_of(ActorId worker) { return NodeId{2 - worker.value % 2}; }
  runtime::Promise<Value> being_made(ActorId id) {
    const runtime::Promise<Value> made;
    pool_.add(id, made.future(), node_of(id));
    return made;
  }
  // Runs the tasks one after the other. Returns them with their workers, as running() does.
  std::string where(std::initializer_list<const char*> tasks) {
    std::string out;
    for (const std::string what : tasks) {
      const auto result = submit(what);
      out += (out.empty() ? "" : " ") + running();
      returns(what);
      EXPECT_TRUE(result.ready());
    }
    return out;
  }
};

TEST_F(SpreadTest, NodesHaveTheirTurns) {
  worker(kA);
  worker(kB);
  EXPECT_EQ(where({"a", "b", "c", "d", "e"}), "1:a 2:b 1:c 2:d 1:e");
  worker(ActorId{3});  // node 1 still has one turn
  EXPECT_EQ(where({"f", "g", "h"}), "2:f 1:g 2:h");
}

TEST_F(SpreadTest, AtMostOneNodeMoreThanWaitingTasksGetsWorkers) {
  const std::vector<NodeId> roomy = {NodeId{4}, NodeId{1}, NodeId{2}, NodeId{3}};
  using Nodes = std::vector<NodeId>;
  EXPECT_EQ(pool_.next_nodes(roomy), Nodes{NodeId{4}});
  const auto first = being_made(kA);
  EXPECT_EQ(pool_.next_nodes(roomy), Nodes{});  // a worker is being made
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(pool_.next_nodes(roomy), (Nodes{NodeId{4}, NodeId{2}, NodeId{3}}));
  first.set(text_value(""));
  EXPECT_EQ(running(), "1:a");
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}}), Nodes{NodeId{2}});  // as many as `roomy` has, although more are needed
  worker(kB);
  EXPECT_EQ(pool_.next_nodes(roomy), (Nodes{NodeId{4}, NodeId{3}}));
}

TEST_F(SpreadTest, NodesGetWorkersInTheirTurns) {
  worker(kA);
  worker(kB);
  EXPECT_EQ(where({"a", "b", "c"}), "1:a 2:b 1:c");
  pass(2s);
  EXPECT_EQ(pool_.take_wants(1s).ended, (std::vector<ActorId>{kA, kB}));
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}}), std::vector<NodeId>{NodeId{2}});
  // Node 3 has never had a turn.
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}, NodeId{3}}), std::vector<NodeId>{NodeId{3}});
}

TEST_F(SpreadTest, ATaskWhoseNextNodeIsBusyGoesElsewhere) {
  worker(kA);
  worker(kB);
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(running(), "1:a 2:b");
  returns("a");
  EXPECT_EQ(running(), "2:b 1:c");
}

TEST_F(SpreadTest, TheTurnOfANodeIsKeptWhileItsWorkerIsMade) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  const auto b = submit("b");
  EXPECT_EQ(running(), "");
  second.set(text_value(""));
  EXPECT_EQ(running(), "2:b");
}

TEST_F(SpreadTest, TheTurnOfANodeThatGetsNoWorkerIsNotKeptForEver) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  const auto b = submit("b");
  pass(10s);
  EXPECT_EQ(running(), "1:b");
  returns("b");
  EXPECT_EQ(where({"c", "d"}), "1:c 1:d");
}

TEST_F(SpreadTest, ANodeWhoseWorkerCannotStartLosesItsTurn) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  // "b" may run once, and has not run.
  const auto b = pool_.submit(task("b"));
  second.set(fail(unavailable("its node is gone")));
  EXPECT_EQ(running(), "1:b");
}

TEST_F(SpreadTest, AfterOneThatCannotBeMadeOthersAreWantedLater) {
  worker(kA);
  const auto a = submit("a"), b = submit("b");
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);
  for (const auto pause : {1s, 2s, 4s}) {
    being_made(kB).set(fail(unavailable("no interpreter there")));
    EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
    pass(pause - 1ms);
    EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
    EXPECT_TRUE(pool_.next_nodes({NodeId{2}, NodeId{3}}).empty());
    pass(1ms);
    EXPECT_EQ(pool_.take_wants(1h).workers, 1u);
    EXPECT_EQ(pool_.next_nodes({NodeId{2}, NodeId{3}}).size(), 2u);
  }
}

TEST_F(SpreadTest, ASlowWorkerStartDoesNotPreventOthers) {
  worker(kA);
  const auto second = being_made(kB);
  const auto a = submit("a"), b = submit("b");
  EXPECT_EQ(running(), "1:a");
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);  // a worker is being made
  pass(10s);
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);  // the node of the first one may have no room
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}, NodeId{3}, NodeId{4}, NodeId{5}}).size(), 2u);
}

}  // namespace
}  // namespace shoal::actors
