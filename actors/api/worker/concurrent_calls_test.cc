#include "actors/api/worker/concurrent_calls.h"

#include <gtest/gtest.h>

#include "actors/session/calls/actor_calls.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors::api {
namespace {

using namespace std::chrono_literals;

// Answers nothing.
class Keeper final : public Hosted {
 public:
  void on_call(Incoming incoming) override { kept.push_back(std::move(incoming)); }
  void on_kill(const Error&) override {}
  std::deque<Incoming> kept;
};

class CallSchedulerTest : public testing::Test {
 protected:
  CallSchedulerTest() {
    EXPECT_TRUE(host_.listen(runtime::Endpoint::tcp("host", 1000)));
    host_.add(kActor, "Keeper", keeper_);
    calls_.expect(kActor, "Keeper");
    ActorRow row;
    row.id = kActor;
    row.state = ActorState::kAlive;
    row.endpoint = "host:1000";
    calls_.updated(row);
  }
  ~CallSchedulerTest() override { keeper_->kept.clear(); }

  // A received call with `bytes` of arguments.
  Turn call(std::size_t group, const std::string& method, std::size_t bytes = 1) {
    Call call;
    call.actor = kActor;
    call.method = method;
    const std::string argument(bytes, 'x');
    call.args = Value::make({std::as_bytes(std::span(argument))}).value();
    answers_[method] = calls_.call(std::move(call), {});
    EXPECT_TRUE(world_.run_until([&] { return !keeper_->kept.empty(); }, 30s));
    Turn out{group, std::move(keeper_->kept.front())};
    keeper_->kept.pop_front();
    return out;
  }
  std::string answer(const std::string& method) {
    world_.run_for(1s);
    const auto& answer = answers_.at(method);
    return answer.ready() ? code_name(answer.peek().error().code()) : "none";
  }
  // Begins calls until no more may begin, and returns their methods.
  static std::vector<std::string> begin(CallScheduler& scheduler, std::vector<Turn>& begun) {
    std::vector<std::string> out;
    while (auto turn = scheduler.next()) {
      out.push_back(turn->incoming.call.method);
      begun.push_back(*std::move(turn));
    }
    return out;
  }
  using Methods = std::vector<std::string>;

 private:
  static constexpr ActorId kActor{7};
  runtime::SimWorld world_{{}};
  std::unique_ptr<runtime::SimNetwork> host_network_ = world_.fabric().attach("host", 1);
  std::unique_ptr<runtime::SimNetwork> caller_network_ = world_.fabric().attach("caller", 2);
  std::shared_ptr<Keeper> keeper_ = std::make_shared<Keeper>();
  ActorHost host_{world_.clock(), *host_network_};
  ActorCalls calls_{world_.clock(), *caller_network_, {}};
  std::map<std::string, ValueFuture> answers_;
};

TEST_F(CallSchedulerTest, CallsBeginInTheirOrderAsSoonAsTheirGroupHasRoom) {
  CallScheduler scheduler({1, 2});
  std::vector<Turn> begun;
  for (const auto& [group, method] : std::vector<std::pair<std::size_t, std::string>>{{0, "a"}, {0, "b"}, {1, "c"}, {1, "d"}, {1, "e"}}) {
    scheduler.add(call(group, method));
  }
  EXPECT_EQ(begin(scheduler, begun), (Methods{"a", "c", "d"}));
  scheduler.end_call(1);
  EXPECT_EQ(begin(scheduler, begun), (Methods{"e"}));
  scheduler.end_call(0);
  EXPECT_EQ(begin(scheduler, begun), (Methods{"b"}));
}

TEST_F(CallSchedulerTest, AGroupThatIsFullRefusesItsOwnCallsAndNoOthers) {
  CallScheduler scheduler({1, 1}, {.max_waiting = 4, .max_bytes = 1 << 20});
  std::vector<Turn> begun;
  for (const char* method : {"a", "b", "c"}) scheduler.add(call(1, method));
  EXPECT_EQ(answer("b"), "none");
  EXPECT_EQ(answer("c"), "ResourceExhausted");
  scheduler.add(call(0, "other"));
  EXPECT_EQ(begin(scheduler, begun), (Methods{"a", "other"}));
  scheduler.add(call(1, "d"));
  scheduler.add(call(1, "e"));
  EXPECT_EQ(answer("d"), "none");
  EXPECT_EQ(answer("e"), "ResourceExhausted");
  EXPECT_EQ(answer("other"), "none");
}

TEST_F(CallSchedulerTest, SoManyBytesOfSmallArgumentsWaitAsTheGroupsShare) {
  CallScheduler scheduler({1, 1}, {.max_waiting = 1000, .max_bytes = 20'000});
  std::vector<Turn> begun;
  scheduler.add(call(0, "a", 9'000));
  scheduler.add(call(0, "b", 2'000));
  EXPECT_EQ(answer("b"), "ResourceExhausted");
  scheduler.add(call(1, "other", 9'000));
  EXPECT_EQ(begin(scheduler, begun), (Methods{"a", "other"}));
  scheduler.add(call(0, "c", 9'000));
  EXPECT_EQ(answer("c"), "none");
  Turn d = call(0, "d", 500);
  const CallKey key = d.incoming.key();
  scheduler.add(std::move(d));
  ASSERT_TRUE(scheduler.cancel(key));
  scheduler.add(call(0, "e", 1'000));
  EXPECT_EQ(answer("e"), "none");
  scheduler.add(call(0, "f", 1));
  EXPECT_EQ(answer("f"), "ResourceExhausted");
}

TEST_F(CallSchedulerTest, OneCallMayWaitWithAnySize) {
  CallScheduler scheduler({1, 1}, {.max_waiting = 1000, .max_bytes = 20});
  scheduler.add(call(0, "a", 50'000));
  scheduler.add(call(0, "b"));
  EXPECT_EQ(answer("a"), "none");
  EXPECT_EQ(answer("b"), "ResourceExhausted");
}

}  // namespace
}  // namespace shoal::actors::api
