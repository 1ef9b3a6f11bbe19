#include "actors/api/worker.h"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "actors/api/main.h"

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

class WorkerTest : public testing::Test {
 protected:
  template <class... A>
  Result<Value> ask(std::string_view method, const A&... args) {
    return instance_->call(method, encode(List<A...>(), args...).value());
  }
  std::unique_ptr<Instance> instance_ = TypedInstance<Counter>::make(Place{Rank{3}, 4, nullptr}, encode(List<int>(), 5).value()).value();
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

TEST_F(WorkerTest, WhatAMethodThrowsIsAnError) {
  EXPECT_EQ(ask("throws", std::string("oh")).error().to_string(), "error[Internal/MethodThrew]: the method threw: oh");
  EXPECT_EQ(ask("throws_a_number").error().reason(), "MethodThrew");
  EXPECT_EQ(TypedInstance<Counter>::make(Place{}, encode(List<int>(), -1).value()).error().message(),
            "the constructor threw: it starts below zero");
}

TEST_F(WorkerTest, CallsThatNoMethodTakesAreRefused) {
  EXPECT_EQ(ask("no_such_method").error().code(), Code::kNotFound);
  EXPECT_EQ(ask("add").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ask("add", std::string("two")).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ask("add", Bytes::copy_of("two")).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(TypedInstance<Counter>::make(Place{}, encode(List<>()).value()).error().code(), Code::kInvalidArgument);
}

TEST_F(WorkerTest, AProgramThatWasRebuiltRefusesToServe) {
  EXPECT_TRUE(check_build_id("ab12", "ab12", "/bin/driver"));
  const Error e = check_build_id("ab12", "cd34", "/bin/driver").error();
  EXPECT_EQ(e.reason(), "BuildMismatch");
  EXPECT_EQ(e.message(), "/bin/driver was rebuilt while its driver runs: the driver is build cd34, the file is build ab12");
  EXPECT_FALSE(check_build_id("", "cd34", "/bin/driver"));
}

}  // namespace
}  // namespace shoal::actors::api
