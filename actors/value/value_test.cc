#include "actors/value/value.h"

#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "actors/protocol/wire/control.capnp.h"
#include "actors/value/call.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {
namespace {

std::span<const std::byte> bytes(const std::string& s) { return {reinterpret_cast<const std::byte*>(s.data()), s.size()}; }
std::string text(std::span<const std::byte> s) { return {reinterpret_cast<const char*>(s.data()), s.size()}; }

class ValueTest : public testing::Test {
 protected:
  static void expect_same(const Value& a, const Value& b) {
    ASSERT_EQ(a.num_pieces(), b.num_pieces());
    for (std::size_t i = 0; i < a.num_pieces(); ++i) EXPECT_EQ(text(a.pieces()[i]), text(b.pieces()[i]));
    EXPECT_EQ(a.raised(), b.raised());
  }
  const std::string head_ = "head", small_ = "buffer", empty_, large_ = std::string(200'000, 'x');
};

TEST_F(ValueTest, SmallOnesAreInlineAndLargeOnesShared) {
  const Value small = Value::make({bytes(head_), bytes(small_), bytes(empty_)}).value();
  EXPECT_FALSE(small.shared());
  const Value large = Value::make({bytes(head_), bytes(large_)}, Value::Kind::kRaised).value();
  EXPECT_TRUE(large.shared());
  expect_same(Value::from_memory(large.memory()->descriptor().value()).value(), large);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.pieces()[1].data()) % Value::kAlignment, 0u);
}

TEST_F(ValueTest, WritesToAValueAreInvisibleToOthers) {
  for (const std::string& buffer : {small_, large_}) {
    const Value value = Value::make({bytes(head_), bytes(buffer)}).value();
    const Value mine = value.for_user().value(), other = value.for_user().value();
    const_cast<std::byte&>(mine.pieces()[1][0]) = std::byte{'!'};
    expect_same(value, other);
    EXPECT_EQ(text(value.pieces()[1]), buffer);
    EXPECT_EQ(text(mine.pieces()[1])[0], '!');
  }
}

TEST_F(ValueTest, SeveralValuesTravelAsOneAndAreTakenApart) {
  const auto many = Value::make_many({{bytes(head_)}, {bytes(head_), bytes(large_), bytes(head_)}, {bytes(large_)}}).value();
  const auto whole = value_from(to_message(many, true).value()).value();
  const auto parts = whole.split(3).value();
  EXPECT_FALSE(parts[0].shared());
  EXPECT_EQ(text(parts[0].pieces()[0]), head_);
  ASSERT_TRUE(parts[1].shared());
  EXPECT_FALSE(parts[1].whole());
  EXPECT_EQ(text(parts[1].pieces()[1]), large_);
  EXPECT_EQ(text(parts[1].pieces()[2]), head_);
  EXPECT_EQ(text(parts[2].for_user().value().pieces()[0]), large_);
  // A part that is sent gets a memory of its own.
  const auto again = value_from(to_message(parts[1], true).value()).value();
  EXPECT_TRUE(again.whole());
  EXPECT_EQ(text(again.pieces()[0]), head_);
  EXPECT_EQ(text(again.pieces()[1]), large_);
}

TEST_F(ValueTest, SeveralSmallValuesAreTakenApartToo) {
  const auto parts = Value::make_many({{bytes(head_)}, {bytes(head_), bytes(head_)}}).value().split(2).value();
  EXPECT_EQ(parts[0].pieces().size(), 1u);
  EXPECT_EQ(text(parts[1].pieces()[1]), head_);
  EXPECT_TRUE(Value::make_many({}).value().split(0).value().empty());
}

TEST_F(ValueTest, AnAnswerThatIsNotOfSoManyValuesIsRefused) {
  const auto many = Value::make_many({{bytes(head_)}, {bytes(head_)}}).value();
  EXPECT_FALSE(many.split(1));
  EXPECT_FALSE(many.split(3));
  EXPECT_FALSE(Value::make({bytes(head_)}).value().split(1));
  for (const std::vector<std::uint32_t>& counts : {std::vector<std::uint32_t>{2, 1}, {0, 2}, {1, 0}, {1, 0xffffffff}}) {
    EXPECT_FALSE(Value::make({std::as_bytes(std::span(counts)), bytes(head_), bytes(head_)}).value().split(2));
  }
}

TEST_F(ValueTest, ACallTravelsWithItsArgumentsAndReferences) {
  Call call;
  call.actor = ActorId{9};
  call.method = "add";
  call.args = Value::make({bytes(head_), bytes(small_)}).value();
  call.deps = {Value::make({bytes(large_)}).value(), Value::make({bytes(small_)}).value(),
               Value::make({bytes(large_)}, Value::Kind::kRaised).value()};
  auto message = to_message(call, true).value();
  EXPECT_EQ(message.fds.size(), 2u);
  const Call back = call_from(std::move(message)).value();
  EXPECT_EQ(back.method, "add");
  expect_same(back.args, call.args);
  ASSERT_EQ(back.deps.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) expect_same(back.deps[i], call.deps[i]);
}

TEST_F(ValueTest, APlainValueNeedsNoDescription) {
  const auto answer = [&](const Value& value, bool local, bool plain) {
    auto message = to_message(value, local).value();
    EXPECT_EQ(message.body.empty(), plain);
    const Value back = value_from(std::move(message)).value();
    expect_same(back, value);
    EXPECT_EQ(back.refs().size(), value.refs().size());
    EXPECT_EQ(back.shared(), value.shared());
  };
  Value refers = Value::make({bytes(head_)}).value();
  refers.refer({ObjectKey{}}, nullptr);
  const Value long_one = Value::make({bytes(std::string(1000, 'x'))}).value(), large = Value::make({bytes(large_)}).value();
  for (const bool local : {true, false}) {
    answer(Value::make({bytes(head_)}).value(), local, true);
    answer(Value::make({bytes(empty_)}).value(), local, true);
    answer(long_one, local, true);
    answer(large, local, !local);
    answer(Value::make({bytes(head_), bytes(small_)}).value(), local, false);
    answer(Value::make({bytes(head_)}, Value::Kind::kRaised).value(), local, false);
    answer(refers, local, false);

    Call call;
    call.args = Value::make({bytes(head_)}).value();
    const auto described = [&] { return to_message(call, local).value().body.size(); };
    const auto plain_bytes = described();
    call.args = Value::make({bytes(head_)}, Value::Kind::kRaised).value();
    EXPECT_LT(plain_bytes, described());

    for (const Value& args : {Value::make({bytes(empty_)}).value(), long_one, large, refers}) {
      call.args = args;
      for (const auto& deps : {std::vector<Value>(), std::vector<Value>{Value::make({bytes(small_)}).value()}}) {
        call.deps = deps;
        const Call back = call_from(to_message(call, local).value()).value();
        expect_same(back.args, call.args);
        EXPECT_EQ(back.args.refs().size(), call.args.refs().size());
        ASSERT_EQ(back.deps.size(), deps.size());
        for (std::size_t i = 0; i < deps.size(); ++i) expect_same(back.deps[i], deps[i]);
      }
      const Call without = call_from(to_message(call, local, 1).value()).value();  // the reference's value was sent before
      expect_same(without.args, call.args);
      EXPECT_TRUE(without.deps.empty());
    }
  }
}

TEST_F(ValueTest, ToAnotherHostEverythingTravelsAsBytesAndIsSharedThere) {
  Call call;
  call.method = "add";
  call.args = Value::make({bytes(head_), bytes(large_), bytes(small_)}).value();
  call.deps = {Value::make({bytes(small_)}).value(), Value::make({bytes(large_)}, Value::Kind::kRaised).value()};
  auto message = to_message(call, false).value();
  EXPECT_TRUE(message.fds.empty());
  const Call back = call_from(std::move(message)).value();
  expect_same(back.args, call.args);
  ASSERT_EQ(back.deps.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) expect_same(back.deps[i], call.deps[i]);
  EXPECT_TRUE(back.args.shared());  // can be sent as a descriptor on this host
  EXPECT_FALSE(back.deps[0].shared());
  const Value many = Value::make_many({{bytes(head_), bytes(large_)}, {bytes(small_)}}).value();
  const auto parts = value_from(to_message(many, false).value()).value().split(2).value();
  expect_same(value_from(to_message(parts[0], false).value()).value(), Value::make({bytes(head_), bytes(large_)}).value());
}

TEST_F(ValueTest, ArgumentsThatAreTooManyForACallGoBeforeItInPortionsThatAMessageHolds) {
  const auto with = [&](std::size_t count, const Value& each) {
    Call call;
    call.actor = ActorId{9};
    call.args = Value::make({bytes(head_)}).value();
    call.deps.assign(count, each);
    return call;
  };
  const auto end = [&](std::size_t count, const Value& each, std::size_t first = 0, bool local = false) {
    return end_of_portion(with(count, each), first, local);
  };
  const auto one_message = [&](std::size_t count, const Value& each, std::size_t first = 0, bool local = false) {
    return goes_with_call(with(count, each), first, local);
  };
  const Value small = Value::make({bytes(small_)}).value(), large = Value::make({bytes(large_)}).value();
  EXPECT_EQ(end(128, small), 128u);
  EXPECT_EQ(end(129, small), 128u);
  EXPECT_EQ(end(129, small, 128), 129u);
  EXPECT_EQ(end(0, small), 0u);
  const Value mebibyte = Value::make({bytes(std::string(1 << 20, 'x'))}).value();
  EXPECT_EQ(end(100, mebibyte), 16u);
  EXPECT_EQ(end(2, Value::make({bytes(std::string(20 << 20, 'x'))}).value()), 1u);  // a message takes at least one value
  Value of_many = small;
  of_many.refer(std::vector<ObjectKey>(10'000), nullptr);
  EXPECT_EQ(end(10, of_many), 2u);
  EXPECT_EQ(end(100, mebibyte, 0, true), 100u);  // as descriptors

  EXPECT_TRUE(one_message(0, small));
  EXPECT_TRUE(one_message(128, small));
  EXPECT_FALSE(one_message(129, small));
  EXPECT_TRUE(one_message(129, small, 1));
  EXPECT_TRUE(one_message(16, mebibyte));
  EXPECT_FALSE(one_message(17, mebibyte));
  EXPECT_TRUE(one_message(128, mebibyte, 0, true));
  EXPECT_TRUE(one_message(1, Value::make({bytes(std::string(20 << 20, 'x'))}).value()));  // no other message has more room
  const Value small_parts = Value::make(std::vector<std::span<const std::byte>>(256, bytes(head_))).value();
  EXPECT_TRUE(Portion::is_small(small_parts, true));
  EXPECT_TRUE(one_message(128, small_parts));
  EXPECT_TRUE(Portion::is_small(large, true));
  for (const Value& v : {large, of_many}) EXPECT_FALSE(Portion::is_small(v, false));
  EXPECT_TRUE(one_message(2, of_many));
  EXPECT_FALSE(one_message(3, of_many));
  Call of_its_own = with(1, of_many);
  of_its_own.args.refer(std::vector<ObjectKey>(20'000), nullptr);
  EXPECT_FALSE(goes_with_call(of_its_own, 0, true));
  EXPECT_TRUE(goes_with_call(of_its_own, 1, true));

  const Call call = with(200, large);
  Call back;
  for (std::size_t first = 0; first < 128; first += 64) {
    auto message = arguments_message(call, first, first + 64, true).value();
    EXPECT_EQ(message.fds.size(), 64u);
    auto arguments = arguments_from(std::move(message)).value();
    EXPECT_EQ(arguments.actor, call.actor);
    EXPECT_EQ(arguments.first, first);
    ASSERT_EQ(arguments.values.value().size(), 64u);
    expect_same(arguments.values.value()[63], large);
  }
  back = call_from(to_message(call, true, 128).value()).value();
  EXPECT_EQ(back.deps.size(), 72u);
  EXPECT_EQ(call.inline_bytes(), head_.size());
  auto lost = arguments_message(call, 0, 2, true).value();
  lost.fds.clear();  // the receiver had no room for the descriptors
  const auto arguments = arguments_from(std::move(lost)).value();
  EXPECT_EQ(arguments.actor, call.actor);
  EXPECT_FALSE(arguments.values);
  EXPECT_FALSE(arguments_from({Bytes(8), {}, {}}));
}

TEST_F(ValueTest, AnItemTravelsWithItsPlaceInItsStream) {
  for (const bool local : {true, false}) {
    const Value large = Value::make({bytes(head_), bytes(large_)}).value();
    const auto back = item_from(item_message(7, 3, large, local).value()).value();
    EXPECT_EQ(back.stream, 7u);
    EXPECT_EQ(back.index, 3u);
    expect_same(back.value.value(), large);
  }
}

TEST_F(ValueTest, BytesThatDoNotAddUpAreRefused) {
  const auto sizes = [](const std::vector<std::uint64_t>& all) {
    PieceSizes out(all.size());
    for (const auto s : all) out.push_back(s);
    return out;
  };
  EXPECT_FALSE(Value::from_inline(sizes({5}), Bytes(4), Value::Kind::kResult));
  EXPECT_FALSE(Value::from_inline(sizes({}), Bytes(0), Value::Kind::kResult));
  EXPECT_FALSE(Value::from_inline(sizes({~0ull, 5}), Bytes(4), Value::Kind::kResult));
  EXPECT_TRUE(Value::from_inline(sizes({1, 0, 3}), Bytes(4), Value::Kind::kResult));
  EXPECT_FALSE(Value::from_memory(runtime::make_memory("x", 100).value()));
  auto message = to_message(Value::make({bytes(head_), bytes(small_)}).value(), true).value();
  message.payload = Bytes(2);
  EXPECT_FALSE(value_from(std::move(message)));
  runtime::Message references{runtime::write<wire::Call>([](wire::Call::Builder m) { m.initDeps(1).begin()->initBuffers(1); }), {}, {}};
  EXPECT_FALSE(call_from(std::move(references)));  // references without arguments
  auto shared = to_message(Value::make({bytes(large_)}).value(), true).value();
  shared.fds.clear();
  EXPECT_FALSE(value_from(std::move(shared)));
}

TEST_F(ValueTest, ACopyHasItsOwnReferences) {
  const std::vector<ObjectKey> one(1), two(2);
  for (const Value::Pieces& pieces : {Value::Pieces{bytes(head_)}, {bytes(head_), bytes(head_)}, {bytes(large_)}}) {
    Value value = Value::make(pieces).value();
    const Value none = value;
    value.refer(one, nullptr);
    Value copy = value;
    copy.refer(two, nullptr);
    Value again = copy;
    again.refer({}, nullptr);
    EXPECT_EQ(none.refs().size(), 0u);
    EXPECT_EQ(value.refs().size(), 1u);
    EXPECT_EQ(copy.refs().size(), 2u);
    EXPECT_EQ(copy.for_user().value().refs().size(), 2u);
    EXPECT_EQ(again.refs().size(), 0u);
    expect_same(again, none);
  }
}

TEST_F(ValueTest, APartIsCopiedOnceHoweverOftenItIsPassedOn) {
  const auto many = Value::make_many({{bytes(head_)}, {bytes(head_), bytes(large_)}}).value();
  const Value part = many.split(2).value()[1], copy = part;
  const auto own = part.own_memory().value();
  EXPECT_NE(own, part.memory());
  EXPECT_EQ(copy.own_memory().value(), own);
  EXPECT_EQ(many.own_memory().value(), many.memory());
}

TEST_F(ValueTest, ThePartsMemoryIsOneThatIsCountedWhereItCanBe) {
  struct Counting final : ValueMemory {
    Result<Fd> fill(std::size_t n, std::span<const runtime::SegmentPool::Part> parts) override {
      total += n;
      return pool.fill(n, parts);
    }
    runtime::SegmentPool pool;
    std::size_t total = 0;
  } counting;
  const auto parts = Value::make_many({{bytes(head_)}, {bytes(head_), bytes(large_)}}).value().split(2).value();
  const auto own = parts[1].own_memory(&counting).value();
  EXPECT_GE(counting.total, large_.size());
  expect_same(value_from(to_message(parts[1], true).value()).value(), parts[1]);
  EXPECT_EQ(parts[1].own_memory().value(), own);
}

}  // namespace
}  // namespace shoal::actors
