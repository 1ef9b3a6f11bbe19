#include "actors/api/worker/program.h"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "actors/api/main.h"
#include "actors/api/worker/execution.h"

namespace shoal::actors::api {
namespace {

class Counter {
 public:
  Counter(Place place, int start) : rank_(place.rank.value), value_(start) {
    if (start < 0) throw std::invalid_argument("it starts below zero");
  }
  int add(int n) { return value_ += n; }
  Result<int> checked_add(int n) {
    if (n > 10) return fail(resource_exhausted("too much at once").with_reason("Full").with_hint("add less").in("step 3"));
    return add(n);
  }
  void reset() { value_ = 0; }
  Result<void> refuse() { return fail(not_found("no")); }
  int throws(const std::string& what) { throw std::runtime_error(what); }
  int throws_a_number() { throw 5; }
  const std::string& label() const { return label_; }
  std::string joined(std::string_view a, const std::string& b, std::string&& c) { return std::string(a) + b + std::move(c); }
  Bytes doubled(std::span<const std::byte> bytes) {
    Bytes out(2 * bytes.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    std::memcpy(out.data() + bytes.size(), bytes.data(), bytes.size());
    return out;
  }
  Result<std::span<const std::byte>> view() const { return kept_.span(); }
  void keep(Bytes bytes) { kept_ = std::move(bytes); }
  int rank() const { return rank_; }
  static constexpr auto methods = shoal::methods(shoal::constructor<Place, int>, &Counter::add, &Counter::checked_add, &Counter::reset,
                                                 &Counter::refuse, &Counter::throws, &Counter::throws_a_number, &Counter::label,
                                                 &Counter::joined, &Counter::doubled, &Counter::view, &Counter::keep, &Counter::rank);

 private:
  int rank_, value_;
  std::string label_ = "label";
  Bytes kept_;
};

Result<int> half(int n) {
  if (n % 2 != 0) return fail(unavailable("it is odd").with_reason("Odd"));
  return n / 2;
}
std::string join(const std::string& a, int b) { return a + std::to_string(b); }

class WorkerTest : public testing::Test {
 protected:
  template <class... A>
  Result<Value> ask(std::string_view method, const A&... args) {
    return instance_->call(method, {encode(List<A...>(), args...).value()});
  }
  std::unique_ptr<Instance> instance_ = TypedInstance<Counter>::make(Place{Rank{3}, 4, nullptr}, {encode(List<int>(), 5).value()}).value();
};

TEST_F(WorkerTest, MethodsRunByName) {
  EXPECT_EQ(decode_result<int>(ask("add", 2).value()).value(), 7);
  EXPECT_EQ(decode_result<int>(ask("checked_add", 2).value()).value(), 9);
  EXPECT_TRUE(decode_result<void>(ask("reset").value()));
  EXPECT_EQ(decode_result<int>(ask("add", 1).value()).value(), 1);
  EXPECT_EQ(decode_result<int>(ask("rank").value()).value(), 3);
  EXPECT_EQ(decode_result<std::string>(ask("label").value()).value(), "label");
  EXPECT_EQ(decode_result<std::string>(ask("joined", std::string("a"), std::string("b"), std::string("c")).value()).value(), "abc");
}

TEST_F(WorkerTest, BytesGoInAndOut) {
  EXPECT_EQ(decode_result<Bytes>(ask("doubled", Bytes::copy_of("ab")).value())->view(), "abab");
  ASSERT_TRUE(ask("keep", Bytes::copy_of("kept")));
  EXPECT_EQ(decode_result<Bytes>(ask("view").value())->view(), "kept");
}

TEST_F(WorkerTest, AnErrorIsReturnedAsItIs) {
  const Error e = ask("checked_add", 11).error();
  EXPECT_EQ(e.to_string(), "error[ResourceExhausted/Full]: too much at once\n  in: step 3\n  hint: add less");
  EXPECT_EQ(ask("refuse").error().code(), Code::kNotFound);
}

TEST_F(WorkerTest, AnExceptionOfAMethodIsAnError) {
  EXPECT_EQ(ask("throws", std::string("oh")).error().to_string(), "error[Internal/MethodThrew]: the method threw: oh");
  EXPECT_EQ(ask("throws_a_number").error().reason(), "MethodThrew");
  EXPECT_EQ(TypedInstance<Counter>::make(Place{}, {encode(List<int>(), -1).value()}).error().message(),
            "the constructor threw: it starts below zero");
}

TEST_F(WorkerTest, CallsThatNoMethodTakesAreRefused) {
  EXPECT_EQ(ask("no_such_method").error().code(), Code::kNotFound);
  EXPECT_EQ(ask("add").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ask("add", std::string("two")).error().to_string(),
            "error[InvalidArgument]: argument 1 of add: an integer was expected, there is text (at byte 1 of 5)");
  EXPECT_EQ(ask("add", Bytes::copy_of("two")).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(TypedInstance<Counter>::make(Place{}, {encode(List<>()).value()}).error().code(), Code::kInvalidArgument);
}

TEST_F(WorkerTest, AProgramThatWasRebuiltRefusesToServe) {
  EXPECT_TRUE(check_build_id("ab12", "ab12", "/bin/driver"));
  const Error e = check_build_id("ab12", "cd34", "/bin/driver").error();
  EXPECT_EQ(e.reason(), "BuildMismatch");
  EXPECT_EQ(e.message(), "/bin/driver was rebuilt while its driver runs: the driver is build cd34, the file is build ab12");
  EXPECT_FALSE(check_build_id("", "cd34", "/bin/driver"));
}

TEST_F(WorkerTest, FunctionsRunByNameAndTheirErrorsAreValues) {
  using Table = FunctionTable<&half, &join>;
  const auto table = Table::make(Place{}, {encode(List<WorkerId, NodeId>(), WorkerId{1}, NodeId{2}).value()}).value();
  EXPECT_TRUE(function_name<&half>().ends_with("half")) << function_name<&half>();
  const auto call = [&](std::string_view name, const Value& args) { return table->call(name, {args}).value(); };
  EXPECT_EQ(decode_result<int>(call(function_name<&half>(), encode(List<int>(), 8).value())).value(), 4);
  EXPECT_EQ(decode_result<std::string>(call(function_name<&join>(), encode(List<std::string, int>(), "a", 2).value())).value(), "a2");
  const Value odd = call(function_name<&half>(), encode(List<int>(), 7).value());
  EXPECT_TRUE(odd.raised());
  EXPECT_EQ(raised_error(odd).to_string(), "error[Unavailable/Odd]: it is odd");
  EXPECT_EQ(raised_error(call("nobody", odd)).code(), Code::kNotFound);
  EXPECT_EQ(raised_error(Value::make({std::as_bytes(std::span("pickle"))}, Value::Kind::kRaised).value()).code(), Code::kUnimplemented);
}

TEST_F(WorkerTest, ACreationSpecHasTheActorsArguments) {
  const Making making{"user::Counter", 0, 1, 3, encode(List<int, Bytes>(), 5, Bytes::copy_of("bytes")).value(), true};
  const std::string creation_spec = to_creation_spec(making).value();
  const Making again = from_creation_spec(creation_spec).value();
  EXPECT_EQ(again.full_class_name, "user::Counter");
  EXPECT_EQ(again.max_concurrency, 3);
  EXPECT_TRUE(again.restarts);
  EXPECT_EQ(std::get<1>(decode(List<int, Bytes>(), again.args).value()).view(), "bytes");
  for (std::size_t n = 0; n < creation_spec.size(); ++n) EXPECT_FALSE(from_creation_spec(std::string_view(creation_spec).substr(0, n)));
  const Making large{"user::Counter", 0, 1, 1, encode(List<Bytes>(), Bytes(GangSpec::kMaxCreationSpec)).value()};
  EXPECT_EQ(to_creation_spec(large).error().code(), Code::kInvalidArgument);
}

TEST_F(WorkerTest, AnActorFoundByNameHasItsClassInBothLanguages) {
  EXPECT_EQ(to_found("user::Counter"), "cshoal._handle\n_foreign\n(Vuser::Counter\ntR.");  // the same bytes as in
                                                                                           // tests/semantics/names_test.py
  EXPECT_EQ(class_of_found(to_found("user::Counter")), "user::Counter");
  EXPECT_EQ(class_of_found("\x80\x05K\x01."), std::nullopt);
}

Generator<std::string> yields(int to, bool fails, bool throws) {
  for (int i = 0; i < to; ++i) co_yield std::to_string(i);
  if (fails) co_yield fail(unavailable("no more").with_reason("NoMore"));
  if (throws) throw std::runtime_error("oh");
}

TEST_F(WorkerTest, AGeneratorYieldsUpToItsEndOrItsFailure) {
  auto ends = yields(2, false, false);
  EXPECT_EQ(*ends.next(method_threw).value(), "0");
  EXPECT_EQ(*ends.next(method_threw).value(), "1");
  EXPECT_EQ(ends.next(method_threw).value(), nullptr);
  auto fails = yields(1, true, true);
  EXPECT_EQ(*fails.next(method_threw).value(), "0");
  EXPECT_EQ(fails.next(method_threw).error().reason(), "NoMore");
  auto throws = yields(0, false, true);
  EXPECT_EQ(throws.next(method_threw).error().to_string(), "error[Internal/MethodThrew]: the generator threw: oh");
}

TEST_F(WorkerTest, FinishedCancelledCallsLeaveNothing) {
  CancelledCalls cancelled;
  EXPECT_FALSE(cancelled.any());
  cancelled.note({1, 2});
  cancelled.note({1, 2});
  cancelled.note({1, 3});
  cancelled.forget({1, 2});
  EXPECT_TRUE(cancelled.any());
  EXPECT_FALSE(cancelled.has({1, 2}));
  EXPECT_TRUE(cancelled.has({1, 3}));
  cancelled.forget({1, 3});
  EXPECT_FALSE(cancelled.any());
}

class Mixed {
 public:
  Task<int> one() { co_return 1; }
  int two() { return 2; }
  int three() { return 3; }
  static constexpr auto methods = shoal::methods(&Mixed::one, &Mixed::two, &Mixed::three);
  static constexpr auto concurrency_groups =
      shoal::concurrency_groups(shoal::concurrency_group(5, &Mixed::three), shoal::concurrency_group(7, &Mixed::one));
};

TEST_F(WorkerTest, AClassDeclaresHowItsCallsRun) {
  EXPECT_FALSE(instance_->concurrency().on_loop);
  EXPECT_TRUE(instance_->concurrency().groups.empty());
  const auto mixed = TypedInstance<Mixed>::make(Place{}, {encode(List<>()).value()}).value();
  EXPECT_TRUE(mixed->concurrency().on_loop);
  EXPECT_EQ(mixed->concurrency().groups, (std::vector<std::int32_t>{5, 7}));
  EXPECT_EQ(mixed->group_of("one"), 2u);
  EXPECT_EQ(mixed->group_of("two"), 0u);
  EXPECT_EQ(mixed->group_of("three"), 1u);
  EXPECT_EQ(mixed->group_of("nobody"), 0u);
  EXPECT_EQ(mixed->call("one", {encode(List<>()).value()}).error().code(), Code::kUnimplemented);  // coroutines need a loop
}

TEST_F(WorkerTest, AModeFollowsFromTheClassAndTheOptions) {
  EXPECT_EQ(mode_of({}, 1), Mode::kSerial);
  EXPECT_EQ(mode_of({}, 2), Mode::kThreads);
  EXPECT_EQ(mode_of({.groups = {1}}, 1), Mode::kThreads);
  EXPECT_EQ(mode_of({.on_loop = true}, 1), Mode::kLoop);
  EXPECT_EQ(mode_of({.on_loop = true, .groups = {1}}, 2), Mode::kLoop);
}

}  // namespace
}  // namespace shoal::actors::api
