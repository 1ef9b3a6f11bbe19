#include "actors/session/calls/actor_calls_fixture.h"

namespace shoal::actors {
namespace {

// ---- ends of processes and connections

TEST_F(ActorCallsTest, ABrokenConnectionFailsSentCallsAndReconnects) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_EQ(outcome(held), "Unavailable/ActorUnavailable");
  const auto next = call(kActor, "next");
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(next), "next");
  EXPECT_EQ(calls_.actors().cause(kActor), nullptr);
}

TEST_F(ActorCallsTest, TheCauseOfADeathArrivesBeforeSentCallsFail) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  world_.fabric().disconnect("caller", "host");
  world_.run_for(100ms);
  EXPECT_EQ(outcome(held), "pending");
  calls_.process_gone(kWorker, unavailable("killed"));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
  EXPECT_EQ(outcome(call(kActor, "next")), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, NewsOfADeathDoNotOvertakeTheLastAnswers) {
  now_alive();
  const auto answered = call(kActor, "hold"), held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 2; }, 30s));
  actor_->held[0].reply(text_value("last words"));
  calls_.process_gone(kWorker, unavailable("killed"));
  const auto next = call(kActor, "next");
  ASSERT_TRUE(run_until_ready(answered));
  EXPECT_EQ(outcome(answered), "last words");
  EXPECT_EQ(outcome(held), "pending");
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
  EXPECT_EQ(outcome(next), "Unavailable/ActorDied");
  EXPECT_EQ(actor_->received.size(), 2u);  // no call was sent to the ended process
}

TEST_F(ActorCallsTest, NewsOfADeathWaitNoLongerThanAMomentForAConnectionThatDoesNotEnd) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  calls_.process_gone(kWorker, unavailable("killed"));
  ASSERT_TRUE(run_until_ready(held, 1s));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, AnActorThatCannotBeReachedFailsItsCallsUntilItCan) {
  host_.reset();
  now_alive();
  const auto first = call(kActor, "a");
  world_.run_for(20s);
  EXPECT_EQ(outcome(first), "pending");
  ASSERT_TRUE(run_until_ready(first));
  EXPECT_EQ(outcome(first), "Unavailable/ActorUnavailable");
  start_host();
  const auto second = call(kActor, "b");
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(outcome(second), "b");
}

TEST_F(ActorCallsTest, WithoutNewsOnlyALiveConnectionIsALife) {
  calls_.updated(row(kActor, ActorState::kAlive));
  const auto held = call(kActor, "hold"), never_placed = call(kOther, "next");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  calls_.lose_watch(unavailable("its node is gone"));
  EXPECT_EQ(outcome(never_placed), "Unavailable/ActorDied");
  const auto next = call(kActor, "next");
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(next), "next");
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held, 100ms));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, AnActorThatTheHeadDoesNotKnowLivesAsLongAsItsConnection) {
  calls_.updated(row(kActor, ActorState::kAlive));
  const auto held = call(kActor, "hold"), never_placed = call(kOther, "next");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  for (const ActorId id : calls_.actors().expected()) calls_.unknown(id, not_found("no actor"));
  EXPECT_EQ(outcome(never_placed), "NotFound/");
  EXPECT_EQ(calls_.actors().expected(), std::vector{kActor});
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, AForgottenActorFailsItsCallsAndMayBeExpectedAgain) {
  const auto first = call(kActor, "a");
  calls_.forget(kActor, not_found("no actor"));
  EXPECT_EQ(outcome(first), "NotFound/");
  EXPECT_FALSE(calls_.actors().knows(kActor));
  calls_.expect(kActor, "Echo");
  const auto second = call(kActor, "b");
  now_alive();
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(outcome(second), "b");
}

TEST_F(ActorCallsTest, OnlyTheLastDeadActorsAreRemembered) {
  const auto dies = [&](std::uint64_t n) {
    calls_.expect(ActorId{n}, "Short");
    calls_.updated(row(ActorId{n}, ActorState::kDead));
  };
  // No dead actor was forgotten yet, so an unknown one was never there.
  EXPECT_EQ(outcome(call(ActorId{99}, "next")), "NotFound/");
  for (std::uint64_t n = 100; n < 100 + 2 * calls_options_.max_dead; ++n) dies(n);
  calls_.expect(ActorId{50}, "Next");
  EXPECT_FALSE(calls_.actors().knows(ActorId{100}));
  EXPECT_EQ(outcome(call(ActorId{100}, "next")), "Unavailable/ActorDied");
  EXPECT_NE(calls_.actors().cause(ActorId{99 + 2 * calls_options_.max_dead}), nullptr);
  now_alive();
  const auto next = call(kActor, "next");
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(next), "next");
}

// ---- restarts

class StartedAgainTest : public ActorCallsTest {
 protected:
  explicit StartedAgainTest(bool near = true, runtime::Duration retry_delay = {}) : ActorCallsTest(kSocketBytes, near, retry_delay) {
    reports(ActorState::kAlive);
  }
  void reports(ActorState state) {
    ActorRow reported = row(kActor, state);
    reported.max_restarts = -1;
    calls_.updated(reported);
  }
  void starts_again() {
    world_.run_for(1s);  // lets the process's messages arrive: when it ends, the simulated network drops those under way
    host_.reset();
    reports(ActorState::kRestarting);
    world_.run_for(100ms);
    start_host();
    reports(ActorState::kAlive);
  }
  std::vector<ValueFuture> held(std::size_t count) {
    std::vector<ValueFuture> out;
    const std::size_t before = actor_->held.size();
    for (std::size_t i = 0; i < count; ++i) out.push_back(call(kActor, "hold"));
    EXPECT_TRUE(world_.run_until([&] { return actor_->held.size() == before + count; }, 30s));
    return out;
  }
};

TEST_F(StartedAgainTest, CallsToAProcessThatEndsInTheConstructorGoToTheNextOne) {
  const auto first = held(2);
  starts_again();
  const auto last = call(kActor, "last");  // queued behind the held calls
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 4; }, 30s));
  starts_again();  // calls that were sent again once are sent again a second time
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 6; }, 30s));
  host_->report_constructed();
  for (std::size_t i : {4, 5}) actor_->held[i].reply(text_value(std::to_string(i)));
  ASSERT_TRUE(run_until_ready(last) && run_until_ready(first[0]) && run_until_ready(first[1]));
  EXPECT_EQ(outcome(first[0]) + outcome(first[1]) + outcome(last), "45last");
}

TEST_F(StartedAgainTest, CallsThatMayHaveBegunDoNotGoToTheNextOne) {
  const auto before = held(1);
  host_->report_constructed();
  const auto after = held(1);
  starts_again();
  ASSERT_TRUE(run_until_ready(before[0]) && run_until_ready(after[0]));
  EXPECT_EQ(outcome(before[0]), "Unavailable/ActorUnavailable");
  EXPECT_EQ(outcome(after[0]), "Unavailable/ActorUnavailable");
  const auto next = held(1);  // the new process has not sent kConstructed
  starts_again();
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 4; }, 30s));
  EXPECT_EQ(outcome(next[0]), "pending");
}

TEST_F(StartedAgainTest, CallsThatCannotBeRepeatedAreNotKept) {
  const auto kept = std::make_shared<int>();
  Call c;
  c.actor = kActor;
  c.method = "hold";
  c.args = text_value("");
  c.args.refer({ObjectKey{}}, kept);
  const auto sent = calls_.call(std::move(c), {});
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  EXPECT_GT(kept.use_count(), 1);
  host_->report_constructed();
  world_.run_for(1s);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(outcome(sent), "pending");
}

TEST_F(StartedAgainTest, LaterCallsFailWithTheSameCause) {
  host_->report_constructed();
  const auto sent = held(1);
  starts_again();
  ASSERT_TRUE(run_until_ready(sent[0]));
  EXPECT_EQ(outcome(sent[0]), "Unavailable/ActorUnavailable");
}

class StartedAgainLaterTest : public StartedAgainTest {
 protected:
  StartedAgainLaterTest() : StartedAgainTest(true, 10s) {}
  ValueFuture again(const std::string& method) {
    Call c;
    c.actor = kActor;
    c.method = method;
    c.args = text_value("");
    c.retries = 1;
    return calls_.call(std::move(c), {});
  }
};

TEST_F(StartedAgainLaterTest, CallsWaitInOrderWhileAnActorIsRestarted) {
  const auto lost = again("hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  host_->report_constructed();
  starts_again();
  const auto behind = call(kActor, "behind");
  world_.run_for(5s);
  EXPECT_EQ(actor_->held.size(), 1u);
  EXPECT_EQ(outcome(behind), "pending");
  EXPECT_EQ(outcome(call(kOther, "other")), "pending");
  ASSERT_TRUE(run_until_ready(behind));
  EXPECT_EQ(actor_->held.size(), 2u);
  EXPECT_EQ(actor_->received.back(), "behind");
}

TEST_F(StartedAgainLaterTest, InAnyOrderOtherCallsContinueAndACancelIsImmediate) {
  calls_.in_any_order(kActor, true);
  const auto lost = again("hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  host_->report_constructed();
  starts_again();
  ASSERT_TRUE(run_until_ready(call(kActor, "other"), 5s));
  EXPECT_EQ(actor_->held.size(), 1u);
  calls_.cancel(lost, {});
  EXPECT_EQ(outcome(lost), "Cancelled/TaskCancelled");
}

// An actor on another host, whose last messages may be lost with the connection.
class StartedAgainElsewhereTest : public StartedAgainTest {
 protected:
  StartedAgainElsewhereTest() : StartedAgainTest(false) {}
};

TEST_F(StartedAgainElsewhereTest, ACallInTransitMayHaveBegun) {
  const auto sent = held(1);
  starts_again();
  ASSERT_TRUE(run_until_ready(sent[0]));
  EXPECT_EQ(outcome(sent[0]), "Unavailable/ActorUnavailable");
}

TEST_F(StartedAgainElsewhereTest, CallsOfABrokenConnectionAreNotRepeated) {
  const auto sent = held(1);
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(sent[0]));
  EXPECT_EQ(outcome(sent[0]), "Unavailable/ActorUnavailable");
}

TEST_F(StartedAgainTest, CallsAreNotRepeatedWhileAnswersAreUnread) {
  const auto sent = held(1);
  reports(ActorState::kRestarting);
  ASSERT_TRUE(run_until_ready(sent[0]));
  EXPECT_EQ(outcome(sent[0]), "Unavailable/ActorUnavailable");
}

}  // namespace
}  // namespace shoal::actors
