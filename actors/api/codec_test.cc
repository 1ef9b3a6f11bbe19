#include "actors/api/codec.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/loop/random.h"

namespace shoal::actors::api {

struct Point {
  double x = 0, y = 0;
  std::vector<std::string> tags;
  bool operator==(const Point&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Point, x, y, tags)

struct Fussy {
  int n = 0;
};
void to_json(nlohmann::json& j, const Fussy& f) {
  if (f.n < 0) throw std::runtime_error("fussy: negative");
  j = f.n;
}
void from_json(const nlohmann::json& j, Fussy& f) {
  j.get_to(f.n);
  if (f.n > 100) throw 42;
}

namespace {

template <class P, class A>
Stored<P> there_and_back(const A& value) {
  return std::get<0>(decode(List<P>(), encode(List<P>(), value).value()).value());
}

Value cbor(const nlohmann::json& head, const Value::Pieces& buffers = {}) { return make_value(head, buffers).value(); }

Value raw(const std::vector<std::uint8_t>& bytes) { return Value::make({std::as_bytes(std::span(bytes))}).value(); }

TEST(CodecTest, WhatJsonKnowsTravels) {
  EXPECT_EQ(there_and_back<int>(-5), -5);
  EXPECT_EQ(there_and_back<std::int64_t>(std::numeric_limits<std::int64_t>::min()), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(there_and_back<std::uint64_t>(~0ull), ~0ull);
  EXPECT_EQ(there_and_back<double>(0.1), 0.1);
  EXPECT_EQ(there_and_back<float>(0.1f), 0.1f);
  EXPECT_TRUE(std::isnan(there_and_back<double>(std::nan(""))));
  EXPECT_EQ(there_and_back<double>(-INFINITY), -INFINITY);
  EXPECT_EQ(there_and_back<bool>(true), true);
  EXPECT_EQ(there_and_back<const std::string&>("text"), "text");
  EXPECT_EQ(there_and_back<std::string_view>("text"), "text");
  EXPECT_EQ(there_and_back<std::string>(std::string("a\0\xff", 3)), std::string("a\0\xff", 3));
  const std::map<std::string, std::vector<int>> map = {{"a", {1, 2}}, {"", {}}};
  EXPECT_EQ((there_and_back<decltype(map)&>(map)), map);
  const Point point{1.5, -2, {"x"}};
  EXPECT_EQ(there_and_back<Point>(point), point);
  EXPECT_EQ(there_and_back<std::vector<Point>>(std::vector{point, point}), (std::vector{point, point}));
  EXPECT_EQ((there_and_back<std::tuple<int, std::string>>(std::tuple(1, std::string("s")))), std::tuple(1, std::string("s")));
  EXPECT_EQ(there_and_back<ActorId>(ActorId{~0ull}), ActorId{~0ull});
}

TEST(CodecTest, ArgumentsAreConvertedAsACallWould) {
  EXPECT_EQ(there_and_back<double>(3), 3.0);
  EXPECT_EQ(there_and_back<std::int64_t>(7), 7);
}

TEST(CodecTest, BytesStayOutsideOfTheHead) {
  const Bytes small = Bytes::copy_of("small"), large(1 << 20);
  using Params = List<int, const Bytes&, std::string, std::span<const std::byte>>;
  const Value value = encode(Params(), 1, small, std::string("s"), large.span()).value();
  EXPECT_TRUE(value.shared());
  ASSERT_EQ(value.pieces().size(), 3u);
  EXPECT_LT(value.pieces()[0].size(), 10u);
  const auto [n, first, text, second] = decode(Params(), value).value();
  EXPECT_EQ(n, 1);
  EXPECT_EQ(first.view(), "small");
  EXPECT_EQ(text, "s");
  EXPECT_EQ(second.size(), large.size());
  EXPECT_EQ(second.data(), value.pieces()[2].data());  // a view, no copy
}

TEST(CodecTest, AResultIsAListOfOneOrNone) {
  EXPECT_EQ(decode_result<int>(encode(List<int>(), 5).value()).value(), 5);
  EXPECT_TRUE(decode_result<void>(encode(List<>()).value()));
  EXPECT_EQ(decode_result<Bytes>(encode(List<Bytes>(), Bytes::copy_of("b")).value())->view(), "b");
  EXPECT_EQ(decode_result<int>(encode(List<>()).value()).error().code(), Code::kInvalidArgument);
  static_assert(std::is_same_v<Returned<Result<const std::string&>>, std::string>);
  static_assert(std::is_same_v<Returned<Result<void>>, void>);
  static_assert(std::is_same_v<Returned<std::span<const std::byte>>, Bytes>);
}

TEST(CodecTest, WhatDoesNotFitIsRefused) {
  const auto code = [](const auto& result) { return result ? Code::kInternal : result.error().code(); };
  using nlohmann::json;
  using One = List<int>;
  for (const json& head : {json(5), json::array(), json::array({1, 2}), json::array({"text"}), json::array({nullptr}),
                           json::array({json::object()}), json::object(), json()}) {
    EXPECT_EQ(code(decode(One(), cbor(head))), Code::kInvalidArgument) << head;
  }
  const Bytes extra = Bytes::copy_of("x");
  EXPECT_EQ(code(decode(One(), cbor(json::array({1}), {extra.span()}))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(List<Bytes>(), cbor(json::array({nullptr})))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(List<Point>(), cbor(json::array({{{"x", 1}}})))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(One(), raw({}))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(One(), raw({0x81, 0x05, 0x00}))), Code::kInvalidArgument);  // something behind the end
  EXPECT_EQ(code(decode(List<std::string>(), raw({0x81, 0x7b, 255, 255, 255, 255, 255, 255, 255, 255}))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(List<json>(), raw({0x9b, 255, 255, 255, 255, 255, 255, 255, 255}))), Code::kInvalidArgument);
  EXPECT_EQ(code(decode(List<json>(), raw({0xbb, 255, 255, 255, 255, 255, 255, 255, 255}))), Code::kInvalidArgument);
}

TEST(CodecTest, NestingHasABound) {
  const auto nested = [](std::size_t depth, std::uint8_t opening) {
    std::vector<std::uint8_t> out(depth, opening);
    out.push_back(0x05);
    return raw(out);
  };
  EXPECT_TRUE(decode(List<nlohmann::json>(), nested(kMaxDepth, 0x81)));
  EXPECT_FALSE(decode(List<nlohmann::json>(), nested(kMaxDepth + 1, 0x81)));
  EXPECT_FALSE(decode(List<nlohmann::json>(), nested(10'000'000, 0x81)));
  EXPECT_FALSE(decode(List<nlohmann::json>(), nested(10'000'000, 0x9f)));
}

TEST(CodecTest, WhatAConversionThrowsIsAnError) {
  EXPECT_EQ(encode(List<Fussy>(), Fussy{-1}).error().message(), "the values cannot be encoded: fussy: negative");
  EXPECT_EQ(decode(List<Fussy>(), cbor(nlohmann::json::array({101}))).error().code(), Code::kInvalidArgument);
}

TEST(CodecTest, BrokenBytesAreRefusedOrDecodedNeverWorse) {
  runtime::SeededRandom random(7);
  using Params = List<Point, std::map<std::string, int>, Bytes, nlohmann::json>;
  const Point point{1.5, 2.5, {"a", "b"}};
  const Value good = encode(Params(), point, std::map<std::string, int>{{"k", 1}}, Bytes::copy_of("bytes"),
                            nlohmann::json{{"deep", {1, {2, {3}}}}, {"b", nlohmann::json::binary({1, 2})}})
                         .value();
  ASSERT_TRUE(decode(Params(), good));
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto head = good.pieces()[0];
    std::vector<std::byte> bytes(head.begin(), head.end());
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));
    refused += !decode(Params(), Value::make({bytes, good.pieces()[1]}).value());
  }
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace shoal::actors::api
