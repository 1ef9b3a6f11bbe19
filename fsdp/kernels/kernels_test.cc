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

TEST(Reduce, AddsInTheOrderOfRanksWhateverTheWidth) {
  for (const std::size_t n : {0u, 1u, 7u, 16u, 33u, 1000u}) {
    const auto a = noise(n, 1), b = noise(n, 2), c = noise(n, 3);
    std::vector<float> out(n, 9);
    const std::byte* sources[] = {raw(a), raw(b), raw(c)};
    reduce(DType::kFloat32, sources, 1.0 / 3, false, DType::kFloat32, raw(out), n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], ((a[i] + b[i]) + c[i]) * (1.0f / 3)) << i;  // bit for bit
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
  // 1 + 2^-9 + 2^-9: in bf16 steps (8 bits) each addition alone would be lost.
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

TEST(AdamW, IsThePapersUpdate) {
  const AdamW o{.lr = 1e-2, .weight_decay = 0.1};
  for (const std::size_t n : {1u, 15u, 64u, 257u}) {
    auto p = noise(n, 1), m = std::vector<float>(n), v = std::vector<float>(n);
    std::vector<double> rp(p.begin(), p.end()), rm(n), rv(n);
    for (int step = 1; step <= 5; ++step) {
      const auto g = noise(n, static_cast<unsigned>(10 + step));
      adamw(o, step, p.data(), g.data(), m.data(), v.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        rp[i] *= 1 - o.lr * o.weight_decay;
        rm[i] = o.beta1 * rm[i] + (1 - o.beta1) * g[i];
        rv[i] = o.beta2 * rv[i] + (1 - o.beta2) * g[i] * g[i];
        rp[i] -= o.lr / (1 - std::pow(o.beta1, step)) * rm[i] / (std::sqrt(rv[i]) / std::sqrt(1 - std::pow(o.beta2, step)) + o.eps);
      }
    }
    for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(p[i], rp[i], 1e-6) << i;
  }
}

TEST(AdamW, SplitsAnywhereWithTheSameBits) {
  // Ranks own different rows at different world sizes: an element's update must not depend on its neighbours.
  const auto g = noise(1001, 5);
  auto p1 = noise(1001, 6), m1 = std::vector<float>(1001), v1 = m1;
  auto p2 = p1, m2 = m1, v2 = v1;
  adamw({}, 1, p1.data(), g.data(), m1.data(), v1.data(), 1001);
  for (const auto& [from, to] : {std::pair{0, 333}, {333, 340}, {340, 1001}}) {
    adamw({}, 1, p2.data() + from, g.data() + from, m2.data() + from, v2.data() + from, static_cast<std::size_t>(to - from));
  }
  EXPECT_EQ(p1, p2);
  EXPECT_EQ(v1, v2);
}

}  // namespace
}  // namespace shoal::fsdp
