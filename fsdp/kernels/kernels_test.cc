#include "fsdp/kernels/kernels.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

std::vector<float> noise(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (auto& x : out) x = normal(random);
  return out;
}

const std::byte* raw(const std::vector<float>& v) { return reinterpret_cast<const std::byte*>(v.data()); }
std::byte* raw(std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); }

TEST(Reduce, AddsInTheOrderOfRanksAtAnyVectorWidth) {
  for (const std::size_t n : {0u, 1u, 7u, 16u, 33u, 1000u}) {
    const auto a = noise(n, 1), b = noise(n, 2), c = noise(n, 3);
    std::vector<float> out(n, 9);
    const std::byte* sources[] = {raw(a), raw(b), raw(c)};
    reduce(DType::kFloat32, sources, 1.0 / 3, false, DType::kFloat32, raw(out), n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], ((a[i] + b[i]) + c[i]) * (1.0f / 3)) << i;  // equal bit for bit
  }
}

TEST(Reduce, AccumulatesAndMayReadItsOwnOutput) {
  const auto a = noise(100, 1);
  auto out = noise(100, 2);
  const auto before = out;
  const std::byte* sources[] = {raw(out), raw(a)};
  reduce(DType::kFloat32, sources, 0.5, false, DType::kFloat32, raw(out), 100);
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(out[i], (before[i] + a[i]) * 0.5f);
  const auto once = out;
  const std::byte* more[] = {raw(a)};
  reduce(DType::kFloat32, more, 1, true, DType::kFloat32, raw(out), 100);
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(out[i], once[i] + a[i]);
}

TEST(Reduce, HalfPrecisionsAreSummedWideAndRoundedOnce) {
  // 1 + 2^-9 + 2^-9: in bf16 (8 bits of precision) each addition alone would be lost.
  const auto bf16 = [](float f) {
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return static_cast<std::uint16_t>(bits >> 16);
  };
  const std::uint16_t one = bf16(1), small = bf16(0.001953125f);
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(&one), reinterpret_cast<const std::byte*>(&small),
                                reinterpret_cast<const std::byte*>(&small), reinterpret_cast<const std::byte*>(&small)};
  std::uint16_t out = 0;
  reduce(DType::kBFloat16, sources, 1, false, DType::kBFloat16, reinterpret_cast<std::byte*>(&out), 1);
  EXPECT_EQ(out, bf16(1.0078125f));
  const _Float16 h1 = 1, h2 = static_cast<_Float16>(0.0004f);
  const std::byte* halves[] = {reinterpret_cast<const std::byte*>(&h1), reinterpret_cast<const std::byte*>(&h2),
                               reinterpret_cast<const std::byte*>(&h2)};
  _Float16 h = 0;
  reduce(DType::kFloat16, halves, 1, false, DType::kFloat16, reinterpret_cast<std::byte*>(&h), 1);
  EXPECT_EQ(static_cast<float>(h), static_cast<float>(static_cast<_Float16>(1 + 2 * static_cast<float>(h2))));
  const double d1 = 1, d2 = 1e-15;
  const std::byte* doubles[] = {reinterpret_cast<const std::byte*>(&d1), reinterpret_cast<const std::byte*>(&d2)};
  double d = 0;
  reduce(DType::kFloat64, doubles, 1, false, DType::kFloat64, reinterpret_cast<std::byte*>(&d), 1);
  EXPECT_EQ(d, 1 + 1e-15);
}

}  // namespace
}  // namespace shoal::fsdp
