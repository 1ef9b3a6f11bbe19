#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fsdp/kernels/adam.h"
#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/norm.h"
#include "fsdp/kernels/sgd.h"
#include "fsdp/kernels/threads.h"

namespace shoal::fsdp {
namespace optim_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> noise(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> out(n);
  for (auto& x : out) x = normal(random);
  return out;
}

// Numbers in a given dtype.
class Array {
 public:
  Array(DType dtype, const std::vector<double>& values) : dtype_(dtype), bytes_(values.size() * dtype_bytes(dtype)), numel_(values.size()) {
    cast(DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), dtype, bytes_.data(), values.size());
  }
  std::byte* data(std::size_t from = 0) { return bytes_.data() + from * dtype_bytes(dtype_); }
  std::vector<double> values() const {
    std::vector<double> out(numel_);
    cast(dtype_, bytes_.data(), DType::kFloat64, reinterpret_cast<std::byte*>(out.data()), numel_);
    return out;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::size_t numel_;
};

std::vector<double> rounded(DType dtype, const std::vector<double>& values) { return Array(dtype, values).values(); }

struct AdamCase {
  const char* name;
  Adam options;
  bool amsgrad = false;
};

// Adam's formula for one element, in fp64.
void adam_by_hand(const AdamCase& c, int step, double& p, double g, double& m, double& v, double& max_v) {
  const Adam& o = c.options;
  g /= o.grad_scale;
  if (o.maximize) g = -g;
  if (o.decoupled) {
    p *= 1 - o.lr * o.weight_decay;
  } else {
    g += o.weight_decay * p;
  }
  m = o.beta1 * m + (1 - o.beta1) * g;
  v = o.beta2 * v + (1 - o.beta2) * g * g;
  max_v = std::max(max_v, v);
  const double seen = c.amsgrad ? max_v : v;
  p -= o.lr / (1 - std::pow(o.beta1, step)) * m / (std::sqrt(seen) / std::sqrt(1 - std::pow(o.beta2, step)) + o.eps);
}

TEST(Adam, IsThePapersUpdateWithEveryOption) {
  const AdamCase cases[] = {{"decoupled", {.lr = 1e-2, .weight_decay = 0.1}},
                            {"coupled", {.lr = 1e-2, .weight_decay = 0.1, .decoupled = false}},
                            {"maximize", {.lr = 1e-2, .maximize = true}},
                            {"amsgrad", {.lr = 1e-2, .beta2 = 0.5}, true},
                            {"scaled", {.lr = 1e-2, .grad_scale = 8}}};
  for (const AdamCase& c : cases) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::size_t n : {1u, 15u, 64u, 257u}) {
        const std::vector<double> zeros(n);
        auto by_hand = rounded(dtype, noise(n, 1));
        auto m_by_hand = zeros, v_by_hand = zeros, max_by_hand = zeros;
        Array p(dtype, by_hand), m(dtype, zeros), v(dtype, zeros), max_v(dtype, zeros);
        for (int step = 1; step <= 5; ++step) {
          const auto gradient = rounded(dtype, noise(n, static_cast<unsigned>(10 + step)));
          Array g(dtype, gradient);
          const Shard shard{{p.data(), g.data(), m.data(), v.data(), c.amsgrad ? max_v.data() : nullptr}, n};
          std::array<DType, kMaxArrays> dtypes;
          dtypes.fill(dtype);
          adam(c.options, step, dtypes, {&shard, 1}, 1);
          for (std::size_t i = 0; i < n; ++i) adam_by_hand(c, step, by_hand[i], gradient[i], m_by_hand[i], v_by_hand[i], max_by_hand[i]);
          for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(g.values()[i], gradient[i] / c.options.grad_scale) << c.name;
        }
        const double tolerance = dtype == DType::kFloat32 ? 2e-6 : 1e-14;
        for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(p.values()[i], by_hand[i], tolerance) << c.name << " " << n << " " << i;
      }
    }
  }
}

TEST(Adam, SplitsAnywhereWithTheSameBits) {
  // World sizes and thread counts cut arrays differently: an element's update must not depend on its neighbours.
  constexpr std::size_t n = 600'001;
  const auto start = noise(n, 6), zeros = std::vector<double>(n);
  for (const DType gradients : {DType::kFloat32, DType::kBFloat16}) {
    const std::array<DType, kMaxArrays> dtypes{DType::kFloat32, gradients, DType::kFloat32, DType::kFloat32, {}, DType::kFloat16};
    Array g(gradients, noise(n, 5));
    Array p1(DType::kFloat32, start), m1(DType::kFloat32, zeros), v1(DType::kFloat32, zeros), copy1(DType::kFloat16, zeros);
    Array p2 = p1, m2 = m1, v2 = v1, copy2 = copy1;
    const Shard whole{{p1.data(), g.data(), m1.data(), v1.data(), nullptr, copy1.data()}, n};
    adam({}, 1, dtypes, {&whole, 1}, 1);
    std::vector<Shard> parts;
    for (const auto& [from, to] : {std::pair<std::size_t, std::size_t>{0, 333}, {333, 340}, {340, 340}, {340, n}}) {
      parts.push_back({{p2.data(from), g.data(from), m2.data(from), v2.data(from), nullptr, copy2.data(from)}, to - from});
    }
    adam({}, 1, dtypes, parts, 2);
    EXPECT_EQ(p1.bytes(), p2.bytes());
    EXPECT_EQ(v1.bytes(), v2.bytes());
    EXPECT_EQ(copy1.bytes(), copy2.bytes());
    EXPECT_EQ(copy1.values(), rounded(DType::kFloat16, p1.values()));
  }
}

TEST(Adam, AMasterCopyKeepsPrecisionThatBfloat16Loses) {
  // Steps of 1e-3 from 1: bf16 has no number between 1 and 1 - 1/256.
  constexpr std::size_t n = 100;
  const std::vector<double> ones(n, 1), zeros(n);
  const auto train = [&](bool master) {
    Array p(master ? DType::kFloat32 : DType::kBFloat16, ones), copy(DType::kBFloat16, ones), g(DType::kBFloat16, ones);
    Array m(DType::kFloat32, zeros), v(DType::kFloat32, zeros);
    const std::array<DType, kMaxArrays> dtypes{master ? DType::kFloat32 : DType::kBFloat16, DType::kBFloat16, {}, {}, {}, DType::kBFloat16};
    const Shard shard{{p.data(), g.data(), m.data(), v.data(), nullptr, master ? copy.data() : nullptr}, n};
    for (int step = 1; step <= 8; ++step) adam({.weight_decay = 0}, step, dtypes, {&shard, 1}, 1);
    return (master ? copy : p).values()[n - 1];
  };
  EXPECT_EQ(train(false), 1);
  EXPECT_EQ(train(true), 0.9921875);  // 0.992, rounded to bf16
}

TEST(Adam, TakesSubnormalNumbersForZeroAndLeavesTheThreadAsItWas) {
  std::vector<float> p{1}, g{0}, m{1e-40f}, v{1e-40f};
  adam({.weight_decay = 0}, 1, p.data(), g.data(), m.data(), v.data(), 1);
  EXPECT_EQ(m[0], 0);
  EXPECT_EQ(v[0], 0);
  volatile float tiny = 1e-38f;
  EXPECT_GT(tiny / 4, 0);
}

TEST(Sgd, IsTorchsUpdateWithEveryOption) {
  const Sgd cases[] = {{.lr = 0.1},
                       {.lr = 0.1, .momentum = 0.9},
                       {.lr = 0.1, .momentum = 0.9, .dampening = 0.5},
                       {.lr = 0.1, .momentum = 0.9, .nesterov = true},
                       {.lr = 0.1, .weight_decay = 0.1, .maximize = true},
                       {.lr = 0.1, .momentum = 0.9, .grad_scale = 4}};
  constexpr std::size_t n = 37;
  for (Sgd o : cases) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      std::array<DType, kMaxArrays> dtypes;
      dtypes.fill(dtype);
      auto by_hand = rounded(dtype, noise(n, 1)), buffer_by_hand = std::vector<double>(n);
      Array p(dtype, by_hand), buffer(dtype, std::vector<double>(n, 7));  // arbitrary content before the first step
      for (int step = 0; step < 4; ++step) {
        const auto gradient = rounded(dtype, noise(n, static_cast<unsigned>(10 + step)));
        Array g(dtype, gradient);
        o.first = step == 0;
        const Shard shard{{p.data(), g.data(), o.momentum != 0 ? buffer.data() : nullptr}, n};
        sgd(o, dtypes, {&shard, 1}, 1);
        for (std::size_t i = 0; i < n; ++i) {
          double x = gradient[i] / o.grad_scale;
          ASSERT_EQ(g.values()[i], x);
          x = (o.maximize ? -x : x) + o.weight_decay * by_hand[i];
          if (o.momentum != 0) {
            buffer_by_hand[i] = o.first ? x : o.momentum * buffer_by_hand[i] + (1 - o.dampening) * x;
            x = o.nesterov ? x + o.momentum * buffer_by_hand[i] : buffer_by_hand[i];
          }
          by_hand[i] -= o.lr * x;
        }
      }
      for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(p.values()[i], by_hand[i], dtype == DType::kFloat32 ? 1e-6 : 1e-14) << i;
    }
  }
}

TEST(PowerSum, IsTheSumInFp64OfEveryOrderAndDtype) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::size_t n : {0u, 1u, 31u, 1025u, 600'000u}) {
      Array x(dtype, noise(n, 3));
      double squares = 0, sum = 0, cubes = 0, greatest = 0, least = kInfinity;
      for (const double v : x.values()) {
        squares += v * v, sum += std::abs(v), cubes += std::pow(std::abs(v), 3);
        greatest = std::max(greatest, std::abs(v)), least = std::min(least, std::abs(v));
      }
      for (const int threads : {1, 2}) {
        EXPECT_NEAR(power_sum(dtype, x.data(), n, 2, threads), squares, 1e-12 * squares);
        EXPECT_NEAR(power_sum(dtype, x.data(), n, 1, threads), sum, 1e-12 * sum);
        EXPECT_NEAR(power_sum(dtype, x.data(), n, 3, threads), cubes, 1e-12 * cubes);
        EXPECT_EQ(power_sum(dtype, x.data(), n, kInfinity, threads), greatest);
        EXPECT_EQ(power_sum(dtype, x.data(), n, -kInfinity, threads), least);
      }
    }
  }
  std::vector<float> some{0, 1, std::nanf(""), 2, 0};
  EXPECT_TRUE(std::isnan(power_sum(DType::kFloat32, reinterpret_cast<std::byte*>(some.data()), 5, kInfinity, 1)));
  EXPECT_TRUE(std::isnan(power_sum(DType::kFloat32, reinterpret_cast<std::byte*>(some.data()), 5, 2, 1)));
  EXPECT_EQ(power_sum(DType::kFloat32, reinterpret_cast<std::byte*>(some.data()), 5, 0, 1), 3);
}

TEST(Norm, SumsOfRowsHaveTheSameBitsInAnyShardAndWithAnyThreads) {
  constexpr std::size_t rows = 301, row_numel = 1337;
  std::vector<float> x(rows * row_numel);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * (1 + static_cast<float>(i % 7));
  const auto sums = [&](std::size_t begin, std::size_t end, int threads) {
    std::vector<double> out(end - begin);
    row_power_sums(DType::kFloat32, reinterpret_cast<std::byte*>(x.data() + begin * row_numel), end - begin, row_numel, 2, out.data(),
                   threads);
    return out;
  };
  const auto all = sums(0, rows, 1);
  EXPECT_EQ(sums(0, rows, 4), all);
  for (const std::size_t shards : {2, 3, 5}) {
    std::vector<double> joined;
    for (std::size_t s = 0; s < shards; ++s) {
      const auto part = sums(rows * s / shards, rows * (s + 1) / shards, 2);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, all);
  }
  for (std::size_t r = 0; r < rows; ++r)
    ASSERT_EQ(all[r], power_sum(DType::kFloat32, reinterpret_cast<std::byte*>(x.data() + r * row_numel), row_numel, 2, 1));
}

TEST(OverThreads, CoversEveryElementOnce) {
  for (const std::size_t n : {0u, 1u, 262'144u, 262'145u, 1'000'003u}) {
    for (const int threads : {0, 1, 2, 3, 8}) {
      std::vector<std::atomic<int>> seen(n);
      const int parts = over_threads(n, threads, [&](std::size_t begin, std::size_t end, int) {
        EXPECT_TRUE(begin % 64 == 0 || begin == n);
        for (std::size_t i = begin; i < end; ++i) ++seen[i];
      });
      EXPECT_LE(parts, std::max(threads, 1));
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(seen[i], 1) << i;
    }
  }
  EXPECT_EQ(over_threads(1'000'000, 2, [](std::size_t, std::size_t, int) {}), 2);
  EXPECT_EQ(over_threads(1000, 2, [](std::size_t, std::size_t, int) {}), 1);
}

}  // namespace optim_test
}  // namespace shoal::fsdp
