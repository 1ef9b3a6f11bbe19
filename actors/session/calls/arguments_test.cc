#include "actors/session/calls/actor_calls_fixture.h"

#include <map>

#include "actors/protocol/wire/method.h"

namespace shoal::actors {
namespace {

// Calls with references to more values than one message holds.
class ManyArgumentsTest : public ActorCallsTest {
 protected:
  static std::string nth(std::size_t n, const std::string& of) { return of + std::to_string(n) + std::string(1000, '.'); }
  static std::vector<ValueFuture> values(std::size_t count, const std::string& of = "") {
    std::vector<ValueFuture> out;
    for (std::size_t n = 0; n < count; ++n) {
      const runtime::Promise<Value> promise;
      promise.set(text_value(nth(n, of)));
      out.push_back(promise.future());
    }
    return out;
  }
  static std::string all(std::size_t count, const std::string& of = "") {
    std::string out;
    for (std::size_t n = 0; n < count; ++n) out += nth(n, of) + " ";
    return out;
  }
};

TEST_F(ManyArgumentsTest, AllOfThemArriveAndLaterCallsStayAfterThem) {
  now_alive();
  const auto before = call(kActor, "before");
  std::vector<ValueFuture> results;
  const std::vector<std::size_t> counts = {127, 128, 129, 256, 257, 999, 1000, 1001, 0};
  for (const std::size_t n : counts) results.push_back(call(kActor, "arguments", values(n)));
  const auto last = call(kActor, "last"), other = call(kOther, "arguments", values(300, "other"));
  ASSERT_TRUE(world_.run_until([&] { return last.ready() && other.ready(); }, 30s));
  for (std::size_t k = 0; k < counts.size(); ++k) EXPECT_EQ(outcome(results[k]), all(counts[k])) << counts[k];
  EXPECT_EQ(outcome(other), all(300, "other"));
  std::erase_if(actor_->received, [](const auto& method) { return method == "arguments"; });
  EXPECT_EQ(actor_->received, (std::vector<std::string>{"before", "last"}));
}

TEST_F(ManyArgumentsTest, ACallCancelledAmongItsArgumentsLeavesNone) {
  now_alive();
  const auto first = call(kActor, "first");
  ASSERT_TRUE(run_until_ready(first));  // now the link is connected
  const auto unwanted = call(kActor, "arguments", values(300, "unwanted"));
  const auto next = call(kActor, "arguments", values(200)), last = call(kActor, "arguments", values(2));
  calls_.cancel(unwanted, {});
  EXPECT_EQ(outcome(unwanted), "Cancelled/TaskCancelled");
  ASSERT_TRUE(run_until_ready(last));
  EXPECT_EQ(outcome(next), all(200));
  EXPECT_EQ(outcome(last), all(2));
}

TEST_F(ManyArgumentsTest, AConnectionThatBreaksBetweenThemCostsNothingButTime) {
  now_alive();
  const auto first = call(kActor, "first");
  ASSERT_TRUE(run_until_ready(first));
  const auto result = call(kActor, "arguments", values(400));
  EXPECT_EQ(outcome(result), "pending");
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(result));
  EXPECT_EQ(outcome(result), all(400));
}

TEST_F(ManyArgumentsTest, AFailedReferenceFailsTheCall) {
  now_alive();
  const runtime::Promise<Value> late;
  auto given = values(300);
  given[200] = late.future();
  const auto result = call(kActor, "arguments", given), behind = call(kActor, "behind");
  world_.run_for(1s);
  EXPECT_EQ(outcome(behind), "pending");
  late.set(fail(invalid_argument("no").with_reason("Mine")));
  ASSERT_TRUE(run_until_ready(behind));
  EXPECT_EQ(outcome(result), "InvalidArgument/Mine");
}

TEST_F(ManyArgumentsTest, InAnyOrderArgumentsOfCallsDoNotMix) {
  now_alive();
  calls_.in_any_order(kActor, true);
  const runtime::Promise<Value> late;
  auto given = values(300, "late");
  given[0] = late.future();
  const auto waits = call(kActor, "arguments", given);
  const auto next = call(kActor, "arguments", values(400));
  late.set(text_value(nth(0, "late")));
  ASSERT_TRUE(world_.run_until([&] { return waits.ready() && next.ready(); }, 30s));
  EXPECT_EQ(outcome(waits), all(300, "late"));
  EXPECT_EQ(outcome(next), all(400));
}

TEST_F(ManyArgumentsTest, MoreThanAnybodyMeansAreRefused) {
  now_alive();
  EXPECT_EQ(outcome(call(kActor, "arguments", std::vector<ValueFuture>(Call::kMaxAllDeps + 1, values(1)[0]))),
            "InvalidArgument/TooManyArguments");
}

ValueFuture there(Value value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return promise.future();
}

std::vector<ObjectKey> objects(std::size_t count) {
  std::vector<ObjectKey> out;
  for (std::size_t n = 0; n < count; ++n) out.push_back({JobId{1}, ObjectId{n + 1}});
  return out;
}

Value with_objects(Value value, std::vector<ObjectKey> contains) {
  value.refer(std::move(contains), nullptr);
  return value;
}

// Each value alone fits into a message, but two do not.
TEST_F(ManyArgumentsTest, FewOnesWithManyReferencesInThemGoBeforeTheirCallToo) {
  now_alive();
  for (const std::size_t of_its_own : {0, 30'000}) {
    for (const std::size_t count : {1, 2, 3}) {
      std::vector<ValueFuture> given;
      for (std::size_t n = 0; n < count; ++n) given.push_back(there(with_objects(text_value(nth(n, "")), objects(30'000))));
      Call c;
      c.actor = kActor;
      c.method = "arguments";
      c.args = with_objects(text_value(""), objects(of_its_own));
      const auto result = calls_.call(std::move(c), given), behind = call(kActor, "behind");
      ASSERT_TRUE(run_until_ready(behind));
      EXPECT_EQ(outcome(result), all(count)) << count << " beside " << of_its_own;
    }
  }
}

// Calls over a socket whose queue has room for twenty values.
class LargeArgumentsTest : public ActorCallsTest {
 protected:
  LargeArgumentsTest() : ActorCallsTest(20 << 20) {}
};

TEST_F(LargeArgumentsTest, ToAnotherHostArgumentsPrecedeTheirCallAtTheSocketsPace) {
  now_alive();
  const Value mebibyte = text_value(std::string(1 << 20, 'x'));
  const auto result = call(kActor, "how many", std::vector<ValueFuture>(40, there(mebibyte)));
  ASSERT_TRUE(run_until_ready(result));
  EXPECT_EQ(outcome(result), "40");
}

// The sender counts references for the receiver, which takes back the counts of messages that it did not read.
class CountedArgumentsTest : public ManyArgumentsTest, public runtime::PeerHandler {
 protected:
  using Told = std::map<std::uint64_t, std::int64_t>;
  // The changes of counts that the process of the actors has reported, by object number.
  Told reported() {
    world_.run_for(1s);
    references_.flush();
    return std::exchange(reported_, {});
  }
  static ObjectKey object(std::uint64_t number) { return {JobId{1}, ObjectId{number}}; }
  static Value small(std::uint64_t contains) { return with_objects(text_value("small"), {object(contains)}); }
  // A value above the inline limit. The receiver cannot read it, since its memory_ is NoMemory.
  static Value unreadable(std::uint64_t contains) {
    return with_objects(text_value(std::string(Value::kMaxInlineBytes + 1, 'x')), {object(contains)});
  }

  void SetUp() override {
    host_->count_with(references_, memory_);
    caller_network_->connect(runtime::Endpoint::tcp("host", 1000), runtime::Role::kWorker, 5s, [this](auto connection) {
      peer_ = std::make_unique<runtime::Peer>(std::move(connection).value(), world_.clock(), *this);
    });
    ASSERT_TRUE(world_.run_until([&] { return peer_ != nullptr; }, 30s));
  }
  static Call call_of(std::vector<Value> deps) {
    Call out;
    out.actor = kActor;
    out.method = "arguments";
    out.args = text_value("");
    out.deps = std::move(deps);
    return out;
  }
  void send_portion(const Call& call, std::size_t first, std::size_t end) {
    ASSERT_TRUE(peer_->notify(number(Method::kArguments), arguments_message(call, first, end, false).value()));
  }
  std::string send_call(const Call& call, std::size_t sent) {
    std::string out;
    peer_->call(number(Method::kCallOfArguments), to_message(call, false, sent).value(), runtime::Peer::kNoTimeout,
                [&](const Result<runtime::Message>& answer) { out = answer ? "an answer" : code_name(answer.error().code()); });
    EXPECT_TRUE(world_.run_until([&] { return !out.empty(); }, 30s));
    return out;
  }
  void on_request(runtime::Peer&, runtime::Request, runtime::Responder) override {}
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer&, const Error&) override {}

 private:
  class NoMemory final : public ValueMemory {
    Result<Fd> fill(std::size_t, std::span<const runtime::SegmentPool::Part>) override { return fail(resource_exhausted("none")); }
  };
  NoMemory memory_;
  Told reported_;
  References references_{[] {},
                         [this](std::vector<References::Change> changes) {
                           for (const auto& c : changes) reported_[c.object.id.value] += c.by;
                         }};
  std::unique_ptr<runtime::Peer> peer_;
};

TEST_F(CountedArgumentsTest, PortionsThatDoNotFollowThoseBeforeThem) {
  const Call call = call_of({small(1), small(2), small(3)});
  send_portion(call, 1, 2);
  EXPECT_EQ(reported(), (Told{{2, -1}}));
  send_portion(call, 2, 3);
  EXPECT_EQ(reported(), (Told{{3, -1}}));
  EXPECT_EQ(send_call(call, 3), "InvalidArgument");
  EXPECT_EQ(reported(), Told());
}

TEST_F(CountedArgumentsTest, APortionThatCannotBeRead) {
  const Call call = call_of({small(1), unreadable(2), small(3)});
  send_portion(call, 0, 2);
  EXPECT_EQ(reported(), (Told{{1, -1}, {2, -1}}));
  send_portion(call, 2, 3);
  EXPECT_EQ(reported(), (Told{{3, -1}}));
  EXPECT_EQ(send_call(call, 3), "ResourceExhausted");
}

TEST_F(CountedArgumentsTest, ACallThatCannotBeReadWithAllThatCameBeforeIt) {
  const Call call = call_of({small(1), small(2), unreadable(3)});
  send_portion(call, 0, 1);
  EXPECT_EQ(reported(), Told());
  EXPECT_EQ(send_call(call, 1), "ResourceExhausted");
  EXPECT_EQ(reported(), (Told{{1, -1}, {2, -1}, {3, -1}}));
}

TEST_F(CountedArgumentsTest, ArgumentsOfATooLargeCallAreDropped) {
  now_alive();
  auto given = values(200);
  given[0] = there(small(1));
  Call too_large;
  too_large.actor = kActor;
  too_large.method = "arguments";
  too_large.args = with_objects(text_value(""), objects(50'000));
  const auto result = calls_.call(std::move(too_large), given);
  ASSERT_TRUE(run_until_ready(result));
  EXPECT_EQ(outcome(result), "InvalidArgument/FrameTooLarge");
  EXPECT_EQ(reported(), (Told{{1, -1}}));
  const auto next = call(kActor, "arguments", values(200));
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(next), all(200));
}

}  // namespace
}  // namespace shoal::actors
