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

// A source of each rank from 0 on.
std::vector<Source> of_ranks(DType dtype, std::initializer_list<const void*> data) {
  std::vector<Source> out;
  for (const auto* d : data) out.push_back({static_cast<const std::byte*>(d), dtype, static_cast<int>(out.size())});
  return out;
}

TEST(Reduce, AddsInTheOrderOfRanksAtAnyVectorWidth) {
  for (const std::size_t n : {0u, 1u, 7u, 16u, 33u, 1000u}) {
    const auto a = noise(n, 1), b = noise(n, 2), c = noise(n, 3);
    std::vector<float> out(n, 9);
    reduce(of_ranks(DType::kFloat32, {raw(a), raw(b), raw(c)}), 1.0 / 3, false, DType::kFloat32, raw(out), n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], ((a[i] + b[i]) + c[i]) * (1.0f / 3)) << i;  // equal bit for bit
  }
}

TEST(Reduce, AccumulatesAndMayReadItsOwnOutput) {
  const auto a = noise(100, 1);
  auto out = noise(100, 2);
  const auto before = out;
  reduce(of_ranks(DType::kFloat32, {raw(out), raw(a)}), 0.5, false, DType::kFloat32, raw(out), 100);
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(out[i], (before[i] + a[i]) * 0.5f);
  const auto once = out;
  reduce(of_ranks(DType::kFloat32, {raw(a)}), 1, true, DType::kFloat32, raw(out), 100);
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
  std::uint16_t out = 0;
  reduce(of_ranks(DType::kBFloat16, {&one, &small, &small, &small}), 1, false, DType::kBFloat16, reinterpret_cast<std::byte*>(&out), 1);
  EXPECT_EQ(out, bf16(1.0078125f));
  const _Float16 h1 = 1, h2 = static_cast<_Float16>(0.0004f);
  _Float16 h = 0;
  reduce(of_ranks(DType::kFloat16, {&h1, &h2, &h2}), 1, false, DType::kFloat16, reinterpret_cast<std::byte*>(&h), 1);
  EXPECT_EQ(static_cast<float>(h), static_cast<float>(static_cast<_Float16>(1 + 2 * static_cast<float>(h2))));
  const double d1 = 1, d2 = 1e-15;
  double d = 0;
  reduce(of_ranks(DType::kFloat64, {&d1, &d2}), 1, false, DType::kFloat64, reinterpret_cast<std::byte*>(&d), 1);
  EXPECT_EQ(d, 1 + 1e-15);
}

TEST(Reduce, AddsAlongAnAlignedTreeOfRanks) {
  constexpr std::size_t n = 1300;
  std::vector<std::vector<float>> v;
  for (unsigned r = 0; r < 8; ++r) v.push_back(noise(n, r));
  const auto sum = [&](std::vector<int> ranks) {
    std::vector<Source> sources;
    for (const int r : ranks) sources.push_back({raw(v[static_cast<std::size_t>(r)]), DType::kFloat32, r});
    std::vector<float> out(n);
    reduce(sources, 1, false, DType::kFloat32, raw(out), n);
    return out;
  };
  const auto all = sum({0, 1, 2, 3, 4, 5, 6, 7}), some = sum({0, 2, 3, 5, 7});
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(all[i], ((v[0][i] + v[1][i]) + (v[2][i] + v[3][i])) + ((v[4][i] + v[5][i]) + (v[6][i] + v[7][i])));
    ASSERT_EQ(some[i], (v[0][i] + (v[2][i] + v[3][i])) + (v[5][i] + v[7][i]));
  }
}

TEST(Reduce, SumsOfBlocksGiveTheBitsOfTheirRanks) {
  constexpr std::size_t n = 700;
  std::vector<std::vector<float>> v;
  for (unsigned r = 0; r < 6; ++r) v.push_back(noise(n, r));
  std::vector<Source> sources;
  for (int r = 0; r < 6; ++r) sources.push_back({raw(v[static_cast<std::size_t>(r)]), DType::kFloat32, r});
  std::vector<float> whole(n), block(n), rest(n), from_blocks(n);
  reduce(sources, 0.25, false, DType::kFloat32, raw(whole), n);
  const std::span all(sources);
  reduce(all.subspan(2, 2), 1, false, DType::kFloat32, raw(block), n);
  reduce(all.subspan(4, 2), 1, false, DType::kFloat32, raw(rest), n);
  const std::vector<Source> blocks = {sources[0], sources[1], {raw(block), DType::kFloat32, 2}, {raw(rest), DType::kFloat32, 4}};
  reduce(blocks, 0.25, false, DType::kFloat32, raw(from_blocks), n);
  EXPECT_EQ(from_blocks, whole);
}

}  // namespace
}  // namespace shoal::fsdp
