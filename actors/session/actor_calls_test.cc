#include "actors/session/actor_calls.h"

#include <cstring>

#include <gtest/gtest.h>

#include "actors/session/actor_host.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;

Value text_value(const std::string& text) { return Value::make({std::as_bytes(std::span(text))}).value(); }

std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return code_name(f.peek().error().code()) + ("/" + f.peek().error().reason());
  const auto head = f.peek()->pieces().at(0);
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

// An actor that answers at once: "boom" with an error, "hold" never, everything else with its method's name.
class Echo final : public Hosted {
 public:
  void on_call(Incoming incoming) override {
    heard.push_back(incoming.call.method);
    if (incoming.call.method == "hold") return held.push_back(std::move(incoming));
    if (incoming.call.method == "boom") return incoming.responder.fail(invalid_argument("boom").with_reason("Boom"));
    incoming.reply(text_value(incoming.call.method));
  }
  void on_kill(const Error&) override {}

  std::vector<std::string> heard;
  std::vector<Incoming> held;
};

// A process with an actor, and one that calls it.
class ActorCallsTest : public testing::Test {
 protected:
  static constexpr ActorId kActor{7}, kOther{8};
  static constexpr WorkerId kWorker{70};

  ActorCallsTest() {
    start_host();
    for (const ActorId id : {kActor, kOther}) calls_.expect(id, "Echo");
  }

  void start_host() {
    host_.emplace(world_.clock(), *host_network_);
    ASSERT_TRUE(host_->listen(runtime::Endpoint::tcp("host", 1000)));
    for (const ActorId id : {kActor, kOther}) host_->add(id, "Echo", actor_);
  }
  ActorRow row(ActorId id, ActorState state) const {
    ActorRow out;
    out.id = id;
    out.state = state;
    out.worker = kWorker;
    if (state == ActorState::kAlive) out.endpoint = "host:1000";
    return out;
  }
  void now_alive() {
    for (const ActorId id : {kActor, kOther}) calls_.updated(row(id, ActorState::kAlive));
  }
  ValueFuture call(ActorId id, const std::string& method, std::vector<ValueFuture> deps = {}, const std::string& argument = {}) {
    Call c;
    c.actor = id;
    c.method = method;
    c.args = text_value(argument);
    return calls_.call(std::move(c), std::move(deps));
  }
  bool run_until_ready(const ValueFuture& f, runtime::Duration limit = 30s) {
    return world_.run_until([&] { return f.ready(); }, limit);
  }

  runtime::SimWorld world_{{}};
  std::unique_ptr<runtime::SimNetwork> host_network_ = world_.fabric().attach("host", 1);
  std::unique_ptr<runtime::SimNetwork> caller_network_ = world_.fabric().attach("caller", 2);
  std::shared_ptr<Echo> actor_ = std::make_shared<Echo>();
  std::optional<ActorHost> host_;
  ActorCalls calls_{world_.clock(), *caller_network_, {}};
};

TEST_F(ActorCallsTest, CallsMadeBeforeItLivesArriveInOrder) {
  const auto first = call(kActor, "a"), second = call(kActor, "b");
  EXPECT_EQ(outcome(first), "pending");
  now_alive();
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(actor_->heard, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(outcome(first), "a");
}

// Each call's argument is the one before it, on either actor in turn: the first one's error is what all of them come to.
TEST_F(ActorCallsTest, ALongChainWhoseFirstCallFailsEndsWithoutAStackOfItsLength) {
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

}  // namespace
}  // namespace shoal::actors
