#include "runtime/transport/reduction.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& i : inputs) sources.push_back(reinterpret_cast<const std::byte*>(i.data()));
  std::vector<T> out(inputs[0].size());
  reduce(dtype, op, sources, reinterpret_cast<std::byte*>(out.data()), out.size());
  return out;
}

TEST(Reduction, JoinsEveryDTypeByEveryOperation) {
  EXPECT_EQ(reduced<float>(DType::kFloat32, ReduceOp::kSum, {{1, 2}, {3, 4}}), (std::vector<float>{4, 6}));
  EXPECT_EQ(reduced<double>(DType::kFloat64, ReduceOp::kAvg, {{1, 2}, {2, 4}}), (std::vector<double>{1.5, 3}));
  EXPECT_EQ(reduced<std::int8_t>(DType::kInt8, ReduceOp::kAvg, {{100, -3}, {100, 0}}), (std::vector<std::int8_t>{100, -1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kUInt8, ReduceOp::kMax, {{200, 1}, {100, 2}}), (std::vector<std::uint8_t>{200, 2}));
  EXPECT_EQ(reduced<std::int32_t>(DType::kInt32, ReduceOp::kProduct, {{-3, 5}, {4, 6}}), (std::vector<std::int32_t>{-12, 30}));
  EXPECT_EQ(reduced<std::int64_t>(DType::kInt64, ReduceOp::kMin, {{-3, 5}, {4, 6}}), (std::vector<std::int64_t>{-3, 5}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kSum, {{0, 1, 0}, {0, 1, 1}}), (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kProduct, {{0, 1, 0}, {0, 1, 1}}), (std::vector<std::uint8_t>{0, 1, 0}));
}

TEST(Reduction, JoinsBitsOfIntegersAndBooleans) {
  using Bytes = std::vector<std::uint8_t>;
  EXPECT_EQ(reduced<std::int32_t>(DType::kInt32, ReduceOp::kBand, {{12, -1}, {10, 7}}), (std::vector<std::int32_t>{8, 7}));
  EXPECT_EQ(reduced<std::int64_t>(DType::kInt64, ReduceOp::kBor, {{12, 0}, {10, 7}}), (std::vector<std::int64_t>{14, 7}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kUInt8, ReduceOp::kBxor, {{12, 1}, {10, 1}, {1, 1}}), (Bytes{7, 1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kBand, {{0, 1, 1}, {0, 0, 1}}), (Bytes{0, 0, 1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kBor, {{0, 1, 1}, {0, 0, 1}}), (Bytes{0, 1, 1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::kBool, ReduceOp::kBxor, {{0, 1, 1}, {0, 0, 1}}), (Bytes{0, 1, 0}));
  EXPECT_FALSE(check_reducible(DType::kFloat32, ReduceOp::kBor));
  EXPECT_TRUE(check_reducible(DType::kInt8, ReduceOp::kBor));
}

TEST(Reduction, IntegersWrapAround) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduced<std::int32_t>(DType::kInt32, ReduceOp::kSum, {{kMax}, {1}}), (std::vector{std::numeric_limits<std::int32_t>::min()}));
}

TEST(Reduction, SumsInTheOrderOfTheSources) {
  EXPECT_EQ(reduced<float>(DType::kFloat32, ReduceOp::kSum, {{1e8f}, {1}, {-1e8f}})[0], 0);
  EXPECT_EQ(reduced<float>(DType::kFloat32, ReduceOp::kSum, {{1e8f}, {-1e8f}, {1}})[0], 1);
}

TEST(Reduction, RoundsHalfPrecisionOnceAtTheEnd) {
  // 1 + 2^-8 + 2^-8 is exact only if sums are rounded once: each addend alone would be lost in bf16.
  const std::vector<std::uint16_t> one{0x3f80}, small{0x3b80};
  EXPECT_EQ(reduced<std::uint16_t>(DType::kBFloat16, ReduceOp::kSum, {one, small, small})[0], 0x3f81);
  const std::vector<_Float16> h{_Float16(2048)}, i{_Float16(1)};
  EXPECT_EQ(static_cast<float>(reduced<_Float16>(DType::kFloat16, ReduceOp::kSum, {h, i, i})[0]), 2050);
}

TEST(Reduction, KeepsNaN) {
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(reduced<float>(DType::kFloat32, ReduceOp::kMax, {{1}, {nan}, {2}})[0]));
  EXPECT_TRUE(std::isnan(reduced<float>(DType::kFloat32, ReduceOp::kMin, {{nan}, {1}})[0]));
  EXPECT_EQ(reduced<std::uint16_t>(DType::kBFloat16, ReduceOp::kSum, {{0x7fc1}, {0x3f80}})[0], 0x7fc0);
}

TEST(Reduction, IsTheSameForEveryLengthAndMayWriteToASource) {
  for (const std::size_t n : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<std::vector<float>> inputs(3, std::vector<float>(n));
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < n; ++i) inputs[r][i] = 0.1f * static_cast<float>(i + r);
    }
    const auto out = reduced<float>(DType::kFloat32, ReduceOp::kSum, inputs);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], inputs[0][i] + inputs[1][i] + inputs[2][i]);
    std::vector<const std::byte*> sources;
    for (const auto& v : inputs) sources.push_back(reinterpret_cast<const std::byte*>(v.data()));
    reduce(DType::kFloat32, ReduceOp::kSum, sources, reinterpret_cast<std::byte*>(inputs[1].data()), n);
    EXPECT_EQ(inputs[1], out);
  }
}

TEST(Reduction, GivesTheSameBitsWithoutAlignment) {
  constexpr std::size_t kElements = 1500;
  std::vector<std::byte> a(kElements * 4 + 1), b(a.size()), out(a.size());
  std::vector<float> x(kElements), y(kElements);
  for (std::size_t i = 0; i < kElements; ++i) x[i] = 0.1f * static_cast<float>(i), y[i] = 1.0f / static_cast<float>(i + 1);
  std::memcpy(a.data() + 1, x.data(), kElements * 4);
  std::memcpy(b.data() + 1, y.data(), kElements * 4);
  for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    const std::vector<const std::byte*> sources{a.data() + 1, b.data() + 1};
    reduce(DType::kFloat32, op, sources, out.data() + 1, kElements);
    const auto aligned = reduced<float>(DType::kFloat32, op, {x, y});
    EXPECT_EQ(std::memcmp(out.data() + 1, aligned.data(), kElements * 4), 0) << reduce_op_name(op);
  }
}

TEST(DTypes, AreRefusedByName) {
  EXPECT_EQ(check_reducible(DType::kInt16, ReduceOp::kSum).error().code(), Code::kUnimplemented);
  EXPECT_NE(check_reducible(DType::kInt16, ReduceOp::kSum).error().message().find("int16"), std::string::npos);
  EXPECT_FALSE(check_reducible(DType::kBool, ReduceOp::kAvg));
  EXPECT_FALSE(find_dtype("float4"));
  EXPECT_EQ(dtype_bytes(find_dtype("complex128").value()), 16u);
  EXPECT_EQ(parse_reduce_op("bxor").value(), ReduceOp::kBxor);
  EXPECT_FALSE(parse_reduce_op("premul_sum"));
}

}  // namespace
}  // namespace shoal::runtime
