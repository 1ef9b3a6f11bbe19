#include "actors/session/calls/actor_calls.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "actors/session/actor_host.h"
#include "actors/wire/method.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;
using Yielded = ActorHost::Yielded;

Value text_value(const std::string& text) { return Value::make({std::as_bytes(std::span(text))}).value(); }

std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return code_name(f.peek().error().code()) + ("/" + f.peek().error().reason());
  const auto head = f.peek()->pieces().at(0);
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

// An actor that answers "boom" with an error, "hold" never, and other methods at once with their names.
class Echo final : public Hosted {
 public:
  void on_call(Incoming incoming) override {
    received.push_back(incoming.call.method);
    if (incoming.call.method == "hold") return held.push_back(std::move(incoming));
    if (incoming.call.method == "boom") return incoming.responder.fail(invalid_argument("boom").with_reason("Boom"));
    if (incoming.call.method == "arguments") return incoming.reply(text_value(joined(incoming.call.deps)));
    if (incoming.call.method == "how many") return incoming.reply(text_value(std::to_string(incoming.call.deps.size())));
    incoming.reply(text_value(incoming.call.method));
  }
  static std::string joined(const std::vector<Value>& values) {
    std::string out;
    for (const Value& v : values) out += std::string(reinterpret_cast<const char*>(v.head().data()), v.head().size()) + " ";
    return out;
  }
  void on_kill(const Error&) override {}
  void on_cancel(CallKey call, CancelHow how) override { cancelled.emplace_back(call, how); }

  std::vector<std::pair<CallKey, CancelHow>> cancelled;
  std::vector<std::string> received;
  std::vector<Incoming> held;
};

// A process with an actor, and its caller.
class ActorCallsTest : public testing::Test {
 protected:
  static constexpr ActorId kActor{7}, kOther{8};
  static constexpr WorkerId kWorker{70};

  explicit ActorCallsTest(std::size_t socket_bytes = kSocketBytes, bool near = false, runtime::Duration retry_delay = {})
      : calls_options_(options(retry_delay)),
        world_(world_options(socket_bytes)),
        caller_network_(world_.fabric().attach(near ? "host" : "caller", 2)),
        at_(near ? runtime::Endpoint::unix_at("actors") : runtime::Endpoint::tcp("host", 1000)) {
    start_host();
    for (const ActorId id : {kActor, kOther}) calls_.expect(id, "Echo");
  }

  void start_host() {
    host_.emplace(world_.clock(), *host_network_);
    ASSERT_TRUE(host_->listen(at_));
    for (const ActorId id : {kActor, kOther}) host_->add(id, "Echo", actor_);
  }
  ActorRow row(ActorId id, ActorState state) const {
    ActorRow out;
    out.id = id;
    out.state = state;
    out.worker = kWorker;
    if (state == ActorState::kAlive) out.endpoint = at_.to_string();
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

  static constexpr std::size_t kSocketBytes = 1 << 20;
  static runtime::SimWorld::Options world_options(std::size_t socket_bytes) {
    runtime::SimWorld::Options out;
    out.network.max_queued_bytes = socket_bytes;
    return out;
  }
  static ActorCalls::Options options(runtime::Duration retry_delay) {
    ActorCalls::Options out;
    out.retry_delay = retry_delay;
    out.max_queued_bytes = 8 * kSocketBytes;
    out.high_water_bytes = kSocketBytes / 4;
    return out;
  }

  const ActorCalls::Options calls_options_;
  runtime::SimWorld world_;
  std::unique_ptr<runtime::SimNetwork> host_network_ = world_.fabric().attach("host", 1);
  std::unique_ptr<runtime::SimNetwork> caller_network_;
  const runtime::Endpoint at_;
  std::shared_ptr<Echo> actor_ = std::make_shared<Echo>();
  std::optional<ActorHost> host_;
  ActorCalls calls_{world_.clock(), *caller_network_, calls_options_};
};

// Calls with more references' values than one message holds.
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
  ASSERT_TRUE(run_until_ready(first));  // it is connected
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

// A socket with room for twenty values.
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

// References in messages that the receiver did not read are uncounted there, since the sender has counted them.
class CountedArgumentsTest : public ManyArgumentsTest, public runtime::PeerHandler {
 protected:
  using Told = std::map<std::uint64_t, std::int64_t>;
  // The host's changes of counts, by object number.
  Told reported() {
    world_.run_for(1s);
    references_.flush();
    return std::exchange(reported_, {});
  }
  static ObjectKey object(std::uint64_t number) { return {JobId{1}, ObjectId{number}}; }
  static Value small(std::uint64_t contains) { return with_objects(text_value("small"), {object(contains)}); }
  // The receiver has no memory for it.
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

TEST_F(ActorCallsTest, YieldedItemsArriveBeforeTheAnswer) {
  now_alive();
  Streams& streams = calls_.streams();
  const auto stream = streams.open();
  const auto done = call(kActor, "hold");
  streams.follow(stream, done);
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  Incoming& incoming = actor_->held.front();
  for (const int k : {0, 1, 2}) {
    EXPECT_EQ(host_->yields(incoming, stream, static_cast<std::uint64_t>(k), text_value(std::to_string(k))), Yielded::kSent);
  }
  incoming.reply(text_value("3"));
  ASSERT_TRUE(run_until_ready(done));
  for (const int k : {0, 1, 2}) {
    EXPECT_EQ(outcome(streams.next(stream)), std::to_string(k));
    streams.take(stream);
  }
  EXPECT_EQ(outcome(streams.next(stream)), "Unavailable/StreamOver");
}

TEST_F(ActorCallsTest, AGeneratorWithoutAReaderGetsAnError) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 0, text_value("a")), Yielded::kSent);
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 1, text_value("b")), Yielded::kUnheard);
  const auto again = call(kActor, "next");  // the same caller's, over another connection
  ASSERT_TRUE(run_until_ready(again));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 1, text_value("b")), Yielded::kUnheard);
}

TEST_F(ActorCallsTest, TwoGeneratorsOfOneCallerDoNotShareRoom) {
  now_alive();
  Streams& streams = calls_.streams();
  const auto stream = streams.open();
  const auto held = call(kActor, "hold"), other = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 2; }, 30s));
  const Value item = text_value(std::string(200'000, 'x'));
  std::uint64_t count = 0;
  for (int round = 0; round < 3; ++round) {
    std::size_t sent = 0, last = 1;
    for (std::size_t k = 0; k < 10; ++k) {
      const auto how = host_->yields(actor_->held[k % 2], k % 2 == 0 ? stream : 0, count, item);
      ASSERT_TRUE(how);
      last = host_->queued_bytes();
      if (*how == Yielded::kNoRoom) continue;
      EXPECT_EQ(how, Yielded::kSent);
      ++sent;
      count += k % 2 == 0;
    }
    EXPECT_EQ(sent, 2u);  // the second was sent while at most kAhead was queued
    EXPECT_LT(last, ActorHost::kAhead + 300'000);
    ASSERT_TRUE(world_.run_until([&] { return host_->queued_bytes() == 0; }, 30s));
  }
  world_.run_for(1s);
  for (std::uint64_t k = 0; k < count; ++k) {
    EXPECT_EQ(outcome(streams.next(stream)).size(), 200'000u);
    streams.take(stream);
  }
  EXPECT_EQ(outcome(streams.next(stream)), "pending");
}

TEST_F(ActorCallsTest, AnItemThatIsADescriptorWaitsUntilNothingElseDoes) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  Incoming& incoming = actor_->held.front();
  const Value small = text_value("small"), large = text_value(std::string(200'000, 'x'));
  EXPECT_EQ(host_->yields(incoming, 1, 0, small), Yielded::kSent);
  ASSERT_GT(host_->queued_bytes(), 0u);
  incoming.local = true;  // a local caller would get it without its bytes
  EXPECT_EQ(host_->yields(incoming, 1, 1, large), Yielded::kNoRoom);
  EXPECT_EQ(host_->yields(incoming, 1, 1, small), Yielded::kSent);
}

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
  EXPECT_EQ(calls_.cause(kActor), nullptr);
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
  EXPECT_EQ(calls_.cause(kActor), nullptr);
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

class StartedAgainTest : public ActorCallsTest {
 protected:
  explicit StartedAgainTest(bool near = true, runtime::Duration retry_delay = {}) : ActorCallsTest(kSocketBytes, near, retry_delay) {
    tell(ActorState::kAlive);
  }
  void tell(ActorState state) {
    ActorRow reported = row(kActor, state);
    reported.max_restarts = -1;
    calls_.updated(reported);
  }
  void starts_again() {
    world_.run_for(1s);  // lets its process's messages arrive, since the fabric drops messages under way
    host_.reset();
    tell(ActorState::kRestarting);
    world_.run_for(100ms);
    start_host();
    tell(ActorState::kAlive);
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
  const auto last = call(kActor, "last");  // behind the held calls
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 4; }, 30s));
  starts_again();  // a second restart resends too
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 6; }, 30s));
  host_->made();
  for (std::size_t i : {4, 5}) actor_->held[i].reply(text_value(std::to_string(i)));
  ASSERT_TRUE(run_until_ready(last) && run_until_ready(first[0]) && run_until_ready(first[1]));
  EXPECT_EQ(outcome(first[0]) + outcome(first[1]) + outcome(last), "45last");
}

TEST_F(StartedAgainTest, CallsThatMayHaveBegunDoNotGoToTheNextOne) {
  const auto before = held(1);
  host_->made();
  const auto after = held(1);
  starts_again();
  ASSERT_TRUE(run_until_ready(before[0]) && run_until_ready(after[0]));
  EXPECT_EQ(outcome(before[0]), "Unavailable/ActorUnavailable");
  EXPECT_EQ(outcome(after[0]), "Unavailable/ActorUnavailable");
  const auto next = held(1);  // the new process has not sent kMade
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
  host_->made();
  world_.run_for(1s);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(outcome(sent), "pending");
}

TEST_F(StartedAgainTest, LaterCallsFailWithTheSameCause) {
  host_->made();
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
  host_->made();
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
  host_->made();
  starts_again();
  ASSERT_TRUE(run_until_ready(call(kActor, "other"), 5s));
  EXPECT_EQ(actor_->held.size(), 1u);
  calls_.cancel(lost, {});
  EXPECT_EQ(outcome(lost), "Cancelled/TaskCancelled");
}

TEST_F(ActorCallsTest, AnActorThatWasNeverPlacedIsAwaitedOnlyByACall) {
  EXPECT_TRUE(calls_.waits_for_nobody(kActor));
  call(kActor, "__init__");
  call(kActor, std::string(kRelease));
  EXPECT_TRUE(calls_.waits_for_nobody(kActor));
  call(kActor, "method");
  EXPECT_FALSE(calls_.waits_for_nobody(kActor));
  now_alive();
  EXPECT_FALSE(calls_.waits_for_nobody(kOther));
}

// Messages of the process may be lost with the connection.
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
  tell(ActorState::kRestarting);
  ASSERT_TRUE(run_until_ready(sent[0]));
  EXPECT_EQ(outcome(sent[0]), "Unavailable/ActorUnavailable");
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
  EXPECT_EQ(actor_->received.size(), 2u);  // nothing was sent to the ended process
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
  calls_.no_more_news(unavailable("its node is gone"));
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
  for (const ActorId id : calls_.expected()) calls_.unknown(id, not_found("no actor"));
  EXPECT_EQ(outcome(never_placed), "NotFound/");
  EXPECT_EQ(calls_.expected(), std::vector{kActor});
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_EQ(outcome(held), "Unavailable/ActorDied");
}

TEST_F(ActorCallsTest, AForgottenActorFailsItsCallsAndMayBeExpectedAgain) {
  const auto first = call(kActor, "a");
  calls_.forget(kActor, not_found("no actor"));
  EXPECT_EQ(outcome(first), "NotFound/");
  EXPECT_FALSE(calls_.knows(kActor));
  calls_.expect(kActor, "Echo");
  const auto second = call(kActor, "b");
  now_alive();
  ASSERT_TRUE(run_until_ready(second));
  EXPECT_EQ(outcome(second), "b");
}

// ---- the actor's side

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

TEST_F(ActorCallsTest, OnlyTheLastDeadActorsAreRemembered) {
  const auto dies = [&](std::uint64_t n) {
    calls_.expect(ActorId{n}, "Short");
    calls_.updated(row(ActorId{n}, ActorState::kDead));
  };
  EXPECT_EQ(outcome(call(ActorId{99}, "next")), "NotFound/");  // no actor was forgotten
  for (std::uint64_t n = 100; n < 100 + 2 * calls_options_.max_dead; ++n) dies(n);
  calls_.expect(ActorId{50}, "Next");
  EXPECT_FALSE(calls_.knows(ActorId{100}));
  EXPECT_EQ(outcome(call(ActorId{100}, "next")), "Unavailable/ActorDied");
  EXPECT_NE(calls_.cause(ActorId{99 + 2 * calls_options_.max_dead}), nullptr);
  now_alive();
  const auto next = call(kActor, "next");
  ASSERT_TRUE(run_until_ready(next));
  EXPECT_EQ(outcome(next), "next");
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
  EXPECT_TRUE(calls_.pending(blocked));
  calls_.cancel(blocked, {});
  EXPECT_EQ(outcome(blocked), "Cancelled/TaskCancelled");
  EXPECT_FALSE(calls_.pending(blocked));
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
  calls_.in_any_order(kActor, true);  // as if found by its name
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
  EXPECT_FALSE(kept.expired());  // a sent call is unanswered
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
  EXPECT_EQ(outcome(other), "pending");  // the actor decides
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
