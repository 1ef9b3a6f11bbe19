#include "actors/session/calls/actor_calls_fixture.h"

namespace shoal::actors {
namespace {

TEST_F(ActorCallsTest, CallsMadeBeforeItLivesArriveInOrder) {
  const auto first = call(kActor, "a"), second = call(kActor, "b");
  EXPECT_EQ(outcome(first), "pending");
  now_alive();
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(actor_->received, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(outcome(first), "a");
}

// Each call's argument is the previous call's result, with alternating actors. All fail with the first call's error.
TEST_F(ActorCallsTest, AFailureAtTheStartOfALongChainNeedsNoDeepStack) {
  constexpr int kLength = 100'000;
  for (const bool known : {false, true}) {
    if (known) now_alive();
    const auto first = call(kActor, "boom");
    ValueFuture last = first;
    for (int i = 0; i < kLength; ++i) last = call(i % 2 ? kActor : kOther, "next", {last});
    if (!known) now_alive();
    ASSERT_TRUE(run_until_ready(last));
    EXPECT_EQ(outcome(last), "InvalidArgument/Boom");
  }
}

TEST_F(ActorCallsTest, ALongChainEndsWithTheDeathOfItsFirstActor) {
  const auto first = call(kActor, "a");
  ValueFuture last = first;
  for (int i = 0; i < 100'000; ++i) last = call(kOther, "next", {last});
  calls_.updated(row(kOther, ActorState::kAlive));
  auto dead = row(kActor, ActorState::kDead);
  dead.cause = unavailable("killed").with_reason("ActorDied");
  calls_.updated(dead);
  ASSERT_TRUE(run_until_ready(last));
  EXPECT_EQ(outcome(last), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, ACallerThatIsFasterThanTheSocketWaits) {
  now_alive();
  const std::string argument(50'000, 'x');
  ValueFuture last;
  for (std::size_t sent = 0; sent < 4 * kSocketBytes; sent += argument.size()) last = call(kActor, "next", {}, argument);
  ASSERT_TRUE(run_until_ready(last));
  EXPECT_EQ(outcome(last), "next");
  EXPECT_EQ(calls_.actors().cause(kActor), nullptr);
}

TEST_F(ActorCallsTest, CallsBeyondTheQueuesBoundAreRefused) {
  const std::string argument(50'000, 'x');
  std::vector<ValueFuture> all;
  for (std::size_t sent = 0; sent < 9 * kSocketBytes; sent += argument.size()) all.push_back(call(kActor, "next", {}, argument));
  EXPECT_EQ(outcome(all.back()), "ResourceExhausted/");
  now_alive();
  ASSERT_TRUE(world_.run_until([&] { return std::ranges::all_of(all, [](const auto& f) { return f.ready(); }); }, 30s));
  EXPECT_EQ(outcome(all.front()), "next");
  EXPECT_EQ(outcome(call(kActor, "next")), "pending");
}

TEST_F(ActorCallsTest, AnActorThatWasNeverPlacedIsAwaitedOnlyByACall) {
  EXPECT_TRUE(calls_.actors().waits_for_nobody(kActor));
  call(kActor, "__init__");
  call(kActor, std::string(kRelease));
  EXPECT_TRUE(calls_.actors().waits_for_nobody(kActor));
  call(kActor, "method");
  EXPECT_FALSE(calls_.actors().waits_for_nobody(kActor));
  now_alive();
  EXPECT_FALSE(calls_.actors().waits_for_nobody(kOther));
}

TEST_F(ActorCallsTest, ARepeatedCallPrecedesCallsThatMayWaitForIt) {
  runtime::Promise<Value> first;
  const auto behind = call(kActor, "behind", {first.future()});
  now_alive();
  Call again;
  again.actor = kActor;
  again.method = "again";
  again.args = text_value("");
  again.task = task_number(7, 1);
  const auto second = calls_.call(again, {});
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(outcome(second), "again");
  EXPECT_EQ(outcome(behind), "pending");
  first.set(text_value("what it came to"));
  ASSERT_TRUE(run_until_ready(behind));
  EXPECT_EQ(actor_->received, (std::vector<std::string>{"again", "behind"}));
}

TEST_F(ActorCallsTest, ACallThatTheActorsQueueHasNoRoomForIsRefused) {
  const auto queue = std::make_shared<CallQueue>(CallQueue::Options{.max_waiting = 100, .max_bytes = 100'000});
  host_->add(kActor, "Echo", queue);
  now_alive();
  const std::string argument(60'000, 'x');
  const auto first = call(kActor, "a", {}, argument), second = call(kActor, "b", {}, argument), third = call(kActor, "c");
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(outcome(second), "ResourceExhausted/");
  ASSERT_TRUE(world_.run_until([&] { return !queue->empty(); }, 30s));
  EXPECT_EQ(queue->pop().call.method, "a");
  const auto fourth = call(kActor, "d", {}, argument);
  world_.run_for(1s);
  EXPECT_EQ(queue->pop().call.method, "c");
  EXPECT_EQ(queue->pop().call.method, "d");
  EXPECT_TRUE(queue->empty());
}

TEST_F(ActorCallsTest, CancellingAnUnsentCallLetsLaterOnesContinue) {
  now_alive();
  const runtime::Promise<Value> never;
  const auto blocked = call(kActor, "blocked", {never.future()}), behind = call(kActor, "behind");
  EXPECT_TRUE(calls_.actors().pending(blocked));
  calls_.cancel(blocked, {});
  EXPECT_EQ(outcome(blocked), "Cancelled/TaskCancelled");
  EXPECT_FALSE(calls_.actors().pending(blocked));
  ASSERT_TRUE(run_until_ready(behind));
  EXPECT_EQ(actor_->received, std::vector<std::string>{"behind"});
}

TEST_F(ActorCallsTest, InAnyOrderACallThatWaitsForAReferenceBlocksNoOther) {
  now_alive();
  const runtime::Promise<Value> later;
  const auto blocked = call(kActor, "blocked", {later.future()}), behind = call(kActor, "behind");
  calls_.in_any_order(kActor, true);
  ASSERT_TRUE(run_until_ready(behind));
  EXPECT_EQ(outcome(blocked), "pending");
  const auto last = call(kActor, "last", {later.future()});
  later.set(text_value("x"));
  ASSERT_TRUE(run_until_ready(last));
  EXPECT_EQ(actor_->received, (std::vector<std::string>{"behind", "blocked", "last"}));
}

TEST_F(ActorCallsTest, InAnyOrderTheReleaseIsTheLastCall) {
  calls_.in_any_order(kActor, true);
  now_alive();
  runtime::Promise<Value> first;
  const auto waits = call(kActor, "waits", {first.future()}), release = call(kActor, std::string(kRelease)), next = call(kActor, "next");
  calls_.in_any_order(kActor, true);  // as for an actor that was found by its name
  world_.run_for(1s);
  EXPECT_TRUE(actor_->received.empty());
  first.set(text_value("now"));
  ASSERT_TRUE(run_until_ready(release) && run_until_ready(next));
  EXPECT_EQ(actor_->received, (std::vector<std::string>{"waits", std::string(kRelease), "next"}));
}

TEST_F(ActorCallsTest, KeptValuesStayUntilTheCurrentCallsAreAnswered) {
  now_alive();
  const runtime::Promise<Value> later;
  const auto held = call(kActor, "hold"), blocked = call(kActor, "blocked", {later.future()}), other = call(kOther, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 2; }, 30s));
  auto first = std::make_shared<int>(), second = std::make_shared<int>();
  const std::weak_ptr<int> kept = first, kept_next = second;
  calls_.keep_until_answered(kActor, std::exchange(first, {}));
  const auto more = call(kActor, "hold", {later.future()});
  calls_.keep_until_answered(kActor, std::exchange(second, {}));
  later.set(text_value("x"));
  ASSERT_TRUE(run_until_ready(blocked));
  EXPECT_FALSE(kept.expired());  // the sent call still has no answer
  actor_->held[0].reply(text_value("done"));
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_TRUE(kept.expired());
  EXPECT_FALSE(kept_next.expired());
  calls_.updated(row(kActor, ActorState::kDead));
  ASSERT_TRUE(run_until_ready(more));
  EXPECT_TRUE(kept_next.expired());
  EXPECT_FALSE(other.ready());
}

TEST_F(ActorCallsTest, NothingIsKeptForTheCallThatMakesAnActorThatIsNotPlaced) {
  const auto made = call(kActor, "__init__");
  auto what = std::make_shared<int>(), other = std::make_shared<int>();
  const std::weak_ptr<int> kept = what, kept_for_call = other;
  calls_.keep_until_answered(kActor, std::exchange(what, {}));
  EXPECT_TRUE(kept.expired());
  const auto method = call(kActor, "a");
  calls_.keep_until_answered(kActor, std::exchange(other, {}));
  EXPECT_FALSE(kept_for_call.expired());
  EXPECT_FALSE(made.ready() || method.ready());
}

TEST_F(ActorCallsTest, NothingIsKeptForCallsThatAreNotMade) {
  (void)call(kOther, "a");
  for (const ActorId id : {kActor, ActorId{99}}) {
    auto what = std::make_shared<int>();
    const std::weak_ptr<int> kept = what;
    calls_.keep_until_answered(id, std::exchange(what, {}));
    EXPECT_TRUE(kept.expired());
  }
}

TEST_F(ActorCallsTest, CancellingASentCallNotifiesTheActor) {
  now_alive();
  const auto held = call(kActor, "hold"), other = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 2; }, 30s));
  calls_.cancel(other, {.recursive = false, .force = true});
  ASSERT_TRUE(world_.run_until([&] { return !actor_->cancelled.empty(); }, 30s));
  ASSERT_EQ(actor_->cancelled.size(), 1u);
  EXPECT_EQ(actor_->cancelled[0].first, actor_->held[1].key());
  EXPECT_TRUE(actor_->cancelled[0].second.force);
  EXPECT_FALSE(actor_->cancelled[0].second.recursive);
  EXPECT_EQ(outcome(other), "pending");  // the actor's process decides about a sent call
}

TEST_F(ActorCallsTest, NestedCallsAreCancelledWithTheirCall) {
  Call mine;
  mine.actor = kActor;
  mine.method = "mine";
  mine.args = text_value("");
  mine.parent = {3, 9};
  const auto child = calls_.call(std::move(mine), {}), other = call(kActor, "other");
  calls_.cancel_children({3, 9});
  EXPECT_EQ(outcome(child), "Cancelled/TaskCancelled");
  EXPECT_EQ(outcome(other), "pending");
}

}  // namespace
}  // namespace shoal::actors
