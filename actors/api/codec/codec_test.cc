#include "actors/api/codec/decode.h"
#include "actors/api/codec/encode.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
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

enum class Colour : std::uint8_t { kRed = 1, kBlue = 200 };

struct Layer {
  std::string name;
  std::vector<float> weights;
  std::optional<int> epoch;
  Colour colour = Colour::kRed;
  bool operator==(const Layer&) const = default;
  static constexpr auto fields = shoal::fields(&Layer::name, &Layer::weights, &Layer::epoch, &Layer::colour);
};

// A later version of Layer, which lacks most fields and has a new one.
struct Renamed {
  std::string name;
  int added = 7;
  static constexpr auto fields = shoal::fields(&Renamed::name, &Renamed::added);
};

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

Value cbor(const nlohmann::json& head, Value::Pieces buffers = {}) {
  const auto bytes = nlohmann::json::to_cbor(head);
  buffers.insert(buffers.begin(), std::as_bytes(std::span(bytes)));
  return Value::make(buffers).value();
}

Value raw(const std::vector<std::uint8_t>& bytes) { return Value::make({std::as_bytes(std::span(bytes))}).value(); }

TEST(CodecTest, ValuesTravel) {
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
  EXPECT_EQ(there_and_back<Colour>(Colour::kBlue), Colour::kBlue);
  EXPECT_EQ(there_and_back<std::optional<std::string>>(std::optional<std::string>("x")), "x");
  EXPECT_EQ(there_and_back<std::optional<std::string>>(std::optional<std::string>()), std::nullopt);
  EXPECT_EQ((there_and_back<std::array<int, 3>>(std::array{1, -2, 3})), (std::array{1, -2, 3}));
  EXPECT_EQ((there_and_back<std::pair<char, bool>>(std::pair('c', true))), std::pair('c', true));
  EXPECT_EQ(there_and_back<std::set<std::string>>(std::set<std::string>{"b", "a"}), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(there_and_back<std::vector<bool>>(std::vector<bool>{true, false, true}), (std::vector<bool>{true, false, true}));
  EXPECT_EQ((there_and_back<std::map<int, double>>(std::map<int, double>{{-1, 0.5}})), (std::map<int, double>{{-1, 0.5}}));
  const nlohmann::json any = {{"a", {1, nullptr, 2.5}}, {"b", "text"}};
  EXPECT_EQ(there_and_back<nlohmann::json>(any), any);
  EXPECT_EQ(there_and_back<std::vector<nlohmann::json>>(std::vector{any, any})[1], any);
  const auto inside = std::get<0>(decode(List<std::vector<Bytes>>(), encode(List<std::vector<Bytes>>(),
                                                                            [] {
                                                                              std::vector<Bytes> out;
                                                                              out.push_back(Bytes::copy_of("inside"));
                                                                              return out;
                                                                            }())
                                                                         .value())
                                      .value());
  EXPECT_EQ(inside.at(0).view(), "inside");
}

TEST(CodecTest, EveryIntegerOfATypeTravelsAndNoOther) {
  for (const std::int64_t n :
       {0l, 23l, 24l, 255l, 256l, 65535l, 65536l, 4294967295l, 4294967296l, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(there_and_back<std::int64_t>(n), n);
    EXPECT_EQ(there_and_back<std::int64_t>(-1 - n), -1 - n);
  }
  const auto fits = [](auto like, const nlohmann::json& n) {
    return decode(List<decltype(like)>(), cbor(nlohmann::json::array({n}))).has_value();
  };
  EXPECT_TRUE(fits(std::int8_t{}, -128) && fits(std::int8_t{}, 127) && fits(std::uint8_t{}, 255) && fits(std::uint64_t{}, ~0ull));
  EXPECT_FALSE(fits(std::int8_t{}, -129) || fits(std::int8_t{}, 128) || fits(std::uint8_t{}, 256) || fits(std::uint8_t{}, -1));
  EXPECT_FALSE(fits(std::int64_t{}, ~0ull) || fits(int{}, 1.5) || fits(int{}, true));
  EXPECT_FALSE(fits(Colour{}, 256));
  EXPECT_TRUE(fits(double{}, 3) && fits(double{}, -3) && fits(float{}, 0.5));  // integers fit floats
}

TEST(CodecTest, AClassThatListsItsFieldsTravelsByTheirNames) {
  const Layer layer{"l1", {0.5f, -1}, 3, Colour::kBlue};
  EXPECT_EQ(there_and_back<Layer>(layer), layer);
  EXPECT_EQ((there_and_back<std::map<std::string, Layer>>(std::map<std::string, Layer>{{"a", layer}})).at("a"), layer);
  const auto read =
      nlohmann::json::from_cbor(encode(List<Layer>(), layer).value().head(), true, true, nlohmann::json::cbor_tag_handler_t::ignore);
  EXPECT_EQ(read.at(0).at("name"), "l1");
  EXPECT_EQ(read.at(0).at("epoch"), 3);
  // Unknown fields are skipped; a missing one is an error.
  using nlohmann::json;
  const json known = {{"name", "n"}, {"later", {1, {2, 3}}}, {"added", 5}};
  EXPECT_EQ(std::get<0>(decode(List<Renamed>(), cbor(json::array({known}))).value()).added, 5);
  const Error e = decode(List<Renamed>(), cbor(json::array({{{"name", "n"}}})), {.method = "f"}).error();
  EXPECT_EQ(e.message(), "argument 1 of f: field added of Renamed is missing (at byte 9 of 9)");
}

TEST(CodecTest, NumbersTravelAsTheyLieInMemoryAndOneByOneAreReadToo) {
  std::vector<double> many(1000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i) / 3;
  EXPECT_EQ(there_and_back<std::vector<double>>(many), many);
  EXPECT_LT(encode(List<std::vector<double>>(), many).value().total_bytes(), 8 * many.size() + 16);
  EXPECT_EQ(there_and_back<std::vector<std::int16_t>>(std::vector<std::int16_t>{-1, 300}), (std::vector<std::int16_t>{-1, 300}));
  EXPECT_EQ(std::get<0>(decode(List<std::vector<float>>(), cbor(nlohmann::json::array({{1, 0.5}}))).value()), (std::vector<float>{1, 0.5}));
  EXPECT_FALSE(decode(List<std::vector<float>>(), raw({0x81, 0xd8, 85, 0x43, 1, 2, 3})));  // not a multiple of four bytes
  EXPECT_FALSE(decode(List<std::vector<double>>(), encode(List<std::vector<float>>(), std::vector<float>{1}).value()));
}

TEST(CodecTest, AnErrorNamesTheMethodAndPosition) {
  using nlohmann::json;
  const auto why = [](const json& head) { return decode(List<int, std::string>(), cbor(head), {.method = "add"}).error().message(); };
  EXPECT_EQ(why(json::array({1, 2})), "argument 2 of add: text was expected, there is an integer (at byte 2 of 3)");
  EXPECT_EQ(why(json::array({1})), "the arguments of add: 2 values were expected, there are 1 (at byte 1 of 2)");
  EXPECT_EQ(why(json::array({1e10, "x"})), "argument 1 of add: an integer was expected, there is a number (at byte 1 of 8)");
  EXPECT_EQ(decode_result<bool>(cbor(json::array({json::array()}))).error().message(),
            "the result does not have its declared type: a boolean was expected, there is an array (at byte 1 of 2)");
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

TEST(CodecTest, AResultIsAListOfZeroOrOneValues) {
  EXPECT_EQ(decode_result<int>(encode(List<int>(), 5).value()).value(), 5);
  EXPECT_TRUE(decode_result<void>(encode(List<>()).value()));
  EXPECT_EQ(decode_result<Bytes>(encode(List<Bytes>(), Bytes::copy_of("b")).value())->view(), "b");
  EXPECT_EQ(decode_result<int>(encode(List<>()).value()).error().code(), Code::kInvalidArgument);
  static_assert(std::is_same_v<Returned<Result<const std::string&>>, std::string>);
  static_assert(std::is_same_v<Returned<Result<void>>, void>);
  static_assert(std::is_same_v<Returned<std::span<const std::byte>>, Bytes>);
}

TEST(CodecTest, AValueOfAnotherTypeIsRefused) {
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
  EXPECT_EQ(code(decode(One(), raw({0x81, 0x05, 0x00}))), Code::kInvalidArgument);  // a trailing byte
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

TEST(CodecTest, AnExceptionOfAConversionIsAnError) {
  EXPECT_EQ(encode(List<Fussy>(), Fussy{-1}).error().message(), "the values cannot be encoded: fussy: negative");
  EXPECT_EQ(decode(List<Fussy>(), cbor(nlohmann::json::array({101}))).error().code(), Code::kInvalidArgument);
}

TEST(CodecTest, BrokenBytesAreRefusedOrDecodedNeverWorse) {
  runtime::SeededRandom random(7);
  using Params = List<Point, std::map<std::string, int>, Bytes, nlohmann::json, Layer, std::vector<std::optional<std::tuple<int, double>>>>;
  const Point point{1.5, 2.5, {"a", "b"}};
  const Value good =
      encode(Params(), point, std::map<std::string, int>{{"k", 1}}, Bytes::copy_of("bytes"),
             nlohmann::json{{"deep", {1, {2, {3}}}}, {"b", nlohmann::json::binary({1, 2})}}, Layer{"l", {1, 2, 3}, 5, Colour::kBlue},
             std::vector<std::optional<std::tuple<int, double>>>{std::nullopt, std::tuple(1, 2.5)})
          .value();
  ASSERT_TRUE(decode(Params(), good));
  int refused = 0;
  const auto attempt = [&](std::vector<std::byte> bytes) {
    // A buffer of exactly that size, so that a sanitizer detects an overrun.
    const auto exact = std::make_unique<std::byte[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), exact.get());
    const auto out = decode(Params(), Value::make({std::span(exact.get(), bytes.size()), good.pieces()[1]}).value());
    if (!out) {
      EXPECT_EQ(out.error().code(), Code::kInvalidArgument);
    }
    refused += !out;
  };
  const std::vector<std::byte> head(good.head().begin(), good.head().end());
  for (std::size_t cut = 0; cut < head.size(); ++cut) attempt({head.begin(), head.begin() + static_cast<std::ptrdiff_t>(cut)});
  EXPECT_EQ(refused, static_cast<int>(head.size()));  // every truncation is refused
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = head;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));
    attempt(std::move(bytes));
  }
  EXPECT_GT(refused, 10'000);
}

TEST(CodecTest, ATupleIsSeveralResults) {
  using Three = std::tuple<int, Bytes, std::vector<double>>;
  const Value value = encode_result<Three>(nullptr, Three(7, Bytes::copy_of("bytes"), std::vector<double>{1, 2})).value();
  const auto parts = value.split(3).value();  // separate results
  EXPECT_EQ(decode_result<int>(parts[0]).value(), 7);
  EXPECT_EQ(decode_result<Bytes>(parts[1]).value().view(), "bytes");
  EXPECT_EQ(decode_result<std::vector<double>>(parts[2]).value(), (std::vector<double>{1, 2}));
  const auto all = decode_result<Three>(value).value();
  EXPECT_EQ(std::get<0>(all), 7);
  EXPECT_EQ(std::get<1>(all).view(), "bytes");
  EXPECT_EQ((decode_result<std::tuple<int, int>>(value).error().code()), Code::kInvalidArgument);
  EXPECT_NE((decode_result<std::tuple<std::string, Bytes, int>>(value).error().message().find("text was expected")), std::string::npos);
  EXPECT_EQ((decode_result<std::tuple<int>>(encode(List<int>(), 7).value()).error().code()), Code::kInvalidArgument);
  // As an argument, or inside another type, a tuple is one value.
  EXPECT_EQ((there_and_back<std::tuple<int, bool>>(std::tuple(3, true))), std::tuple(3, true));
}

TEST(CodecTest, ViewsInATupleAreOwnersAtTheCaller) {
  using Views = std::tuple<std::span<const std::byte>, std::string_view, int>;
  using Owners = std::tuple<Bytes, std::string, int>;
  EXPECT_TRUE((std::is_same_v<Returned<Views>, Owners>));
  EXPECT_TRUE((std::is_same_v<Returned<Result<Views>>, Owners>));
  const std::string text(1000, 'x');
  const Value value = encode_result<Views>(nullptr, Views(Bytes::copy_of("bytes").span(), text, 7)).value();
  const auto all = decode_result<Owners>(value).value();
  EXPECT_EQ(std::get<0>(all).view(), "bytes");
  EXPECT_EQ(std::get<1>(all), text);
  EXPECT_EQ(std::get<2>(all), 7);
}

TEST(CodecTest, ATupleWithOneInItIsOneResult) {
  using Nested = std::tuple<std::tuple<int, std::string>, int>;
  EXPECT_EQ(kNumResults<Nested>, 0u);
  const Nested nested{{1, "a"}, 2};
  EXPECT_EQ(decode_result<Nested>(encode_result<Nested>(nullptr, nested).value()), nested);
}

TEST(CodecTest, ReferencesAreReplacedByTheirValues) {
  CborWriter none, one, two;
  const auto hold = std::make_shared<int>(5);
  one.refers_to({JobId{1}, ObjectId{2}, NodeId{3}}, hold);
  two.refers_to({JobId{1}, ObjectId{4}, NodeId{3}}, hold);
  Value value = encode(List<int>(), 7).value();
  refer(value, std::array<const CborWriter*, 3>{&none, &one, &two});
  ASSERT_EQ(value.refs().size(), 2u);
  EXPECT_EQ(value.refs()[0].id, ObjectId{2});
  EXPECT_EQ(value.refs()[1].id, ObjectId{4});
  EXPECT_EQ(hold.use_count(), 5);  // the writers' and the value's
  value = Value();
  EXPECT_EQ(hold.use_count(), 3);
}

}  // namespace
}  // namespace shoal::actors::api
