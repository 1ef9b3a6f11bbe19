#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "fsdp/kernels/kernels.h"

namespace shoal::fsdp {
namespace {

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

// Reference conversion of one number, without vectors.
double load(DType dtype, const std::byte* at) {
  if (dtype == DType::kFloat64) {
    double x;
    std::memcpy(&x, at, 8);
    return x;
  }
  if (dtype == DType::kFloat16) {
    _Float16 x;
    std::memcpy(&x, at, 2);
    return static_cast<double>(x);
  }
  std::uint32_t bits = 0;
  std::memcpy(dtype == DType::kBFloat16 ? reinterpret_cast<std::byte*>(&bits) + 2 : reinterpret_cast<std::byte*>(&bits), at,
              dtype_bytes(dtype));
  float x;
  std::memcpy(&x, &bits, 4);
  return static_cast<double>(x);
}

void store(DType dtype, double wide, std::byte* at) {
  if (dtype == DType::kFloat64) {
    std::memcpy(at, &wide, 8);
    return;
  }
  const auto x = static_cast<float>(wide);
  if (dtype == DType::kFloat16) {
    const auto half = static_cast<_Float16>(x);
    std::memcpy(at, &half, 2);
    return;
  }
  if (dtype == DType::kFloat32) {
    std::memcpy(at, &x, 4);
    return;
  }
  // Rounds to the nearer neighbour, ties to even.
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t low = bits & 0xffff;
  std::uint32_t high = bits >> 16;
  if (low > 0x8000 || (low == 0x8000 && high % 2 == 1)) ++high;
  const auto short_bits = static_cast<std::uint16_t>(high);
  std::memcpy(at, &short_bits, 2);
}

bool same(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::isnan(load(dtype, a)) && std::isnan(load(dtype, b))) return true;
  return std::memcmp(a, b, dtype_bytes(dtype)) == 0;  // compares bytes, and so the sign of zero, too
}

// Numbers of every kind, rounded to `dtype`.
std::vector<std::byte> numbers(DType dtype, std::size_t count) {
  std::vector<double> some{0.0, -0.0, 1.0, -1.0, 65504.0, 65519.9, 65520.0, 1e300, -1e39, 3.4028235e38, 3.39e38, 1e-38, 1e-40, -1e-45};
  for (const double x : {1e-300, 6e-8, 2.98e-8, 2.99e-8, 6.1e-5, 1.0 + 1.0 / 256, 1.0 + 3.0 / 256, 1.0 + 1.0 / 2048, 1.0 + 3.0 / 2048})
    some.push_back(x);
  for (const double x : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")})
    some.push_back(x);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-42, 39), mantissa(-1, 1);
  while (some.size() < count) some.push_back(mantissa(random) * std::pow(10, exponent(random)));
  std::vector<std::byte> out(count * dtype_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) store(dtype, some[i], out.data() + i * dtype_bytes(dtype));
  return out;
}

// Runs each test with every instruction set of this machine for which kernels are compiled.
class OnEveryTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(OnEveryTarget, CastsEveryPairToNearestEven) {
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      for (const std::size_t n : {0u, 1u, 3u, 26u, 31u, 1500u}) {
        const auto in = numbers(from, n < 26 ? 26 : n);
        std::vector<std::byte> out((n + 1) * dtype_bytes(to), std::byte{0x5a}), one(8);
        cast(from, in.data(), to, out.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
          const double x = load(from, in.data() + i * dtype_bytes(from));
          store(to, x, one.data());
          ASSERT_TRUE(same(to, out.data() + i * dtype_bytes(to), one.data()) || (from == to && std::isnan(x)))
              << dtype_name(from) << " to " << dtype_name(to) << " " << x << " is " << load(to, out.data() + i * dtype_bytes(to));
        }
        for (std::size_t i = n * dtype_bytes(to); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0x5a}) << "written beyond the end";
      }
    }
  }
}

TEST_P(OnEveryTarget, CastsEveryNumberOf16BitsThereAndBack) {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::uint16_t> all(65536), back(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<double> wide(65536);
    cast(half, reinterpret_cast<std::byte*>(all.data()), DType::kFloat64, reinterpret_cast<std::byte*>(wide.data()), all.size());
    cast(DType::kFloat64, reinterpret_cast<std::byte*>(wide.data()), half, reinterpret_cast<std::byte*>(back.data()), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto* one = reinterpret_cast<const std::byte*>(&all[i]);
      if (std::isnan(load(half, one))) {
        ASSERT_TRUE(std::isnan(wide[i]));
      } else {
        ASSERT_EQ(wide[i], load(half, one));
        ASSERT_EQ(back[i], all[i]);
      }
    }
  }
}

TEST_P(OnEveryTarget, ReducesEveryPairOfDtypesInOrder) {
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      const bool fp64 = from == DType::kFloat64 || to == DType::kFloat64;
      for (const std::size_t n : {0u, 1u, 19u, 1027u, 3000u}) {
        std::mt19937 random(3);
        std::normal_distribution<double> normal;
        std::vector<std::vector<std::byte>> sources(3, std::vector<std::byte>(n * dtype_bytes(from)));
        std::vector<Source> at;
        for (auto& s : sources) {
          for (std::size_t i = 0; i < n; ++i) store(from, normal(random), s.data() + i * dtype_bytes(from));
          at.push_back({s.data(), from, static_cast<int>(at.size())});
        }
        for (const bool accumulate : {false, true}) {
          std::vector<std::byte> out(n * dtype_bytes(to)), expected(8);
          for (std::size_t i = 0; i < n; ++i) store(to, normal(random), out.data() + i * dtype_bytes(to));
          const auto before = out;
          reduce(at, 1.0 / 3, accumulate, to, out.data(), n);
          for (std::size_t i = 0; i < n; ++i) {
            const auto x = [&](std::size_t s) { return load(from, sources[s].data() + i * dtype_bytes(from)); };
            const double was = load(to, before.data() + i * dtype_bytes(to));
            double sum;
            if (fp64) {
              sum = ((x(0) + x(1)) + x(2)) * (1.0 / 3);
              if (accumulate) sum = was + sum;
            } else {
              float narrow = ((static_cast<float>(x(0)) + static_cast<float>(x(1))) + static_cast<float>(x(2)));
              narrow *= 1.0f / 3;
              if (accumulate) narrow = static_cast<float>(was) + narrow;
              sum = static_cast<double>(narrow);
            }
            store(to, sum, expected.data());
            ASSERT_EQ(std::memcmp(out.data() + i * dtype_bytes(to), expected.data(), dtype_bytes(to)), 0)
                << dtype_name(from) << " to " << dtype_name(to) << " " << n << " " << i;
          }
        }
      }
    }
  }
}

// The sum of values [begin, end) along an aligned binary tree of `size` values from `begin` on.
float tree_sum(const std::vector<float>& values, std::size_t begin, std::size_t size) {
  if (size == 1) return values[begin];
  const std::size_t middle = begin + size / 2;
  const float left = tree_sum(values, begin, size / 2);
  return middle < values.size() ? left + tree_sum(values, middle, size / 2) : left;
}

TEST(Reduce, AddsManySourcesInOneOrder) {
  for (const std::size_t count : {1u, 4u, 5u, 8u, 9u, 13u, 64u}) {
    constexpr std::size_t n = 600;
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    std::vector<std::vector<std::byte>> sources(count, std::vector<std::byte>(n * 2));
    std::vector<Source> at;
    for (auto& s : sources) {
      for (std::size_t i = 0; i < n; ++i) store(DType::kBFloat16, normal(random), s.data() + 2 * i);
      at.push_back({s.data(), DType::kBFloat16, static_cast<int>(at.size())});
    }
    std::vector<float> out(n);
    reduce(at, 1, false, DType::kFloat32, reinterpret_cast<std::byte*>(out.data()), n);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> values;
      for (const Source& s : at) values.push_back(static_cast<float>(load(DType::kBFloat16, s.data + 2 * i)));
      ASSERT_EQ(out[i], tree_sum(values, 0, std::bit_ceil(count))) << count;
    }
  }
}

TEST(Reduce, MayReadItsOwnOutputInAnyDtype) {
  for (const DType dtype : kAll) {
    std::vector<double> ones(1500, 1.5), result(1500);
    std::vector<std::byte> a(1500 * dtype_bytes(dtype)), b = a;
    cast(DType::kFloat64, reinterpret_cast<std::byte*>(ones.data()), dtype, a.data(), 1500);
    b = a;
    const Source sources[] = {{a.data(), dtype, 0}, {b.data(), dtype, 1}};
    reduce(sources, 0.5, false, dtype, a.data(), 1500);
    cast(dtype, a.data(), DType::kFloat64, reinterpret_cast<std::byte*>(result.data()), 1500);
    EXPECT_EQ(result, ones) << dtype_name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, OnEveryTarget, testing::ValuesIn([] {
                           std::vector<std::int64_t> out;
                           for (std::int64_t all = hwy::SupportedTargets(); all != 0; all &= all - 1) out.push_back(all & -all);
                           return out;
                         }()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace shoal::fsdp
