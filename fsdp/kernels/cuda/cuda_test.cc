// The kernels of devices beside those of the CPU, bit for bit. FakeCuda runs their threads one after the other, with the arguments as they
// are launched. With SHOAL_TEST_GPU=1 the tests run on the first GPU instead (tests/gpu/run.sh).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>

#include <gtest/gtest.h>

#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/cuda/device_optim.h"
#include "fsdp/kernels/cuda/on_host.h"
#include "fsdp/kernels/kernels.h"
#include "fsdp/kernels/norm.h"
#include "fsdp/kernels/sgd.h"
#include "runtime/device/kernels/device_kernels.h"
#include "runtime/device/kernels/on_host.h"

namespace shoal::fsdp {
namespace {

using runtime::Device;
using runtime::DeviceKernels;
using runtime::DeviceMemory;
using Bytes = std::vector<std::byte>;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    runtime::add_device_kernels();
    add_optim_kernels();
  }

  // Numbers of all magnitudes that a dtype has, and the special ones.
  Bytes numbers(DType dtype, std::size_t numel, unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<double> wide(numel);
    for (auto& x : wide) x = std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random), static_cast<int>(random() % 30) - 20);
    const double special[] = {0, -0.0, 1, std::numeric_limits<double>::infinity(), 1e-42, 65504, 3.0e38, 6e-8, 1.0 / 3};
    for (std::size_t i = 0; i < std::min(numel, std::size(special)); ++i) wide[i] = special[i];
    Bytes out(numel * dtype_bytes(dtype));
    cast(DType::kFloat64, reinterpret_cast<const std::byte*>(wide.data()), dtype, out.data(), numel);
    return out;
  }
  DeviceMemory to_device(const Bytes& data) const {
    auto memory = device_->allocate(std::max<std::size_t>(data.size(), 1)).value();
    EXPECT_TRUE(device_->copy(memory.get().data(), data.data(), data.size(), stream_.get()));
    EXPECT_TRUE(device_->synchronize(stream_.get()));
    return memory;
  }
  Bytes from_device(const DeviceMemory& memory) const {
    Bytes out(memory.get().size());
    EXPECT_TRUE(device_->copy(out.data(), memory.get().data(), out.size(), stream_.get()));
    EXPECT_TRUE(device_->synchronize(stream_.get()));
    return out;
  }

  static bool on_gpu() {
    const char* const gpu = std::getenv("SHOAL_TEST_GPU");
    return gpu != nullptr && std::string_view(gpu) == "1";
  }
  static const runtime::CudaApi& api() { return on_gpu() ? *runtime::CudaApi::load().value() : runtime::FakeCuda::machine().api(); }
  // The fake takes any image; so these tests need no nvcc.
  DeviceKernels kernels() const { return DeviceKernels::load(device_, on_gpu() ? DeviceKernels::embedded() : "fake").value(); }
  DeviceOptim optim_kernels() const { return DeviceOptim::load(device_, on_gpu() ? DeviceOptim::embedded() : "fake").value(); }

  const std::shared_ptr<Device> device_ = Device::open(api(), 0).value();
  const runtime::Stream stream_ = device_->make_stream().value();
};

TEST_F(CudaKernels, CastsHaveTheBitsOfTheCpu) {
  const auto on = kernels();
  for (const auto from : kFloats) {
    for (const auto to : kFloats) {
      const Bytes in = numbers(from, 20'011, 1);
      const auto on_device = to_device(in), result = to_device(Bytes(20'011 * dtype_bytes(to)));
      ASSERT_TRUE(on.cast(from, on_device.get().data(), to, result.get().data(), 20'011, stream_.get()));
      Bytes expected(20'011 * dtype_bytes(to));
      cast(from, in.data(), to, expected.data(), 20'011);
      EXPECT_EQ(from_device(result), expected) << dtype_name(from) << " to " << dtype_name(to);
    }
  }
  EXPECT_EQ(on.cast(DType::kInt32, nullptr, DType::kFloat32, nullptr, 1, stream_.get()).error().code(), Code::kUnimplemented);
}

TEST_F(CudaKernels, EveryBf16AndF16RoundTripsAndNanStaysNan) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    for (const auto dtype : {DType::kBFloat16, DType::kFloat16}) {
      const bool bf16 = dtype == DType::kBFloat16;
      const float wide = bf16 ? runtime::kernels::from_bf16(half) : runtime::kernels::from_f16(half);
      float expected = 0;
      cast(dtype, reinterpret_cast<const std::byte*>(&half), DType::kFloat32, reinterpret_cast<std::byte*>(&expected), 1);
      const auto back = bf16 ? runtime::kernels::to_bf16(wide) : runtime::kernels::to_f16(wide);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide));
        EXPECT_TRUE(std::isnan(bf16 ? runtime::kernels::from_bf16(back) : runtime::kernels::from_f16(back)));
      } else {
        ASSERT_EQ(std::memcmp(&wide, &expected, sizeof wide), 0) << bits;
        ASSERT_EQ(back, half);
      }
    }
  }
}

TEST_F(CudaKernels, SumsHaveTheBitsOfTheCpu) {
  const auto on = kernels();
  constexpr std::size_t kNumel = 5'003;
  for (const auto from : kFloats) {
    for (const auto to : kFloats) {
      for (const bool accumulate : {false, true}) {
        std::vector<Bytes> inputs;
        std::vector<DeviceMemory> on_device;
        std::vector<Source> sources;  // three ranks, which the host's tree adds in order, too
        std::vector<const void*> device_sources;
        for (unsigned s = 0; s < 3; ++s) inputs.push_back(numbers(from, kNumel, s));
        for (auto& input : inputs) {
          on_device.push_back(to_device(input));
          sources.push_back({input.data(), from, static_cast<int>(sources.size())});
          device_sources.push_back(on_device.back().get().data());
        }
        Bytes expected = numbers(to, kNumel, 9);
        const auto result = to_device(expected);
        reduce(sources, 0.25, accumulate, to, expected.data(), kNumel);
        ASSERT_TRUE(on.sum(from, device_sources, 0.25, accumulate, to, result.get().data(), kNumel, stream_.get()));
        EXPECT_EQ(from_device(result), expected) << dtype_name(from) << " to " << dtype_name(to);
      }
    }
  }
  EXPECT_EQ(on.sum(DType::kFloat32, {}, 1, false, DType::kFloat32, nullptr, 1, stream_.get()).error().code(), Code::kInvalidArgument);
}

TEST_F(CudaKernels, ParametersAreMovedIntoABufferAndBack) {
  const auto on = kernels();
  // Sizes that are copied by 16, 4 and 1 bytes, or not at all, and gaps in the buffer.
  const std::size_t sizes[] = {64, 20, 7, 0, 4096, 1};
  std::vector<DeviceMemory> memory;
  std::vector<DeviceKernels::Row> rows;
  std::vector<Bytes> contents;
  std::size_t at = 0;
  for (unsigned r = 0; r < std::size(sizes); ++r) {
    contents.emplace_back(sizes[r], static_cast<std::byte>(r + 1));
    memory.push_back(to_device(contents.back()));
    rows.push_back({memory.back().get().data(), at, sizes[r]});
    at += (sizes[r] + 15) / 16 * 16;
  }
  const auto buffer = to_device(Bytes(at, std::byte{99}));
  const auto table = on.make_table(rows).value();
  ASSERT_TRUE(on.pack(table, buffer.get().data(), stream_.get()));
  const Bytes packed = from_device(buffer);
  for (unsigned r = 0; r < std::size(sizes); ++r) {
    EXPECT_EQ(Bytes(packed.begin() + static_cast<std::ptrdiff_t>(rows[r].offset),
                    packed.begin() + static_cast<std::ptrdiff_t>(rows[r].offset + sizes[r])),
              contents[r]);
  }
  EXPECT_EQ(packed[84], std::byte{99});
  for (const auto& m : memory) ASSERT_TRUE(device_->zero(m.get().data(), m.get().size(), stream_.get()));
  ASSERT_TRUE(on.unpack(table, buffer.get().data(), stream_.get()));
  for (unsigned r = 0; r < std::size(sizes); ++r) {
    if (sizes[r] > 0) {
      EXPECT_EQ(from_device(memory[r]), contents[r]);
    }
  }
}

TEST_F(CudaKernels, TheSumOfSquaresIsThatOfTheCpuToAFewBitsAndAlwaysTheSame) {
  const auto on = kernels();
  const auto scratch = device_->allocate(DeviceKernels::kSquareScratchBytes).value();
  for (const std::size_t numel : {std::size_t{0}, std::size_t{1}, std::size_t{200'003}}) {
    std::vector<float> values(numel);
    for (std::size_t i = 0; i < numel; ++i) values[i] = static_cast<float>(i % 1000) * 0.001f - 0.3f;
    Bytes in(numel * sizeof(float));
    if (numel > 0) std::memcpy(in.data(), values.data(), in.size());
    const auto on_device = to_device(in), result = to_device(Bytes(16));
    auto* const out = reinterpret_cast<double*>(result.get().data());
    for (int i = 0; i < 2; ++i)
      ASSERT_TRUE(on.square_sum(DType::kFloat32, on_device.get().data(), numel, out + i, scratch.get().data(), stream_.get()));
    double got[2];
    std::memcpy(got, from_device(result).data(), sizeof got);
    EXPECT_EQ(got[0], got[1]);
    const double expected = power_sum(DType::kFloat32, in.data(), numel, 2, 1);
    EXPECT_NEAR(got[0], expected, 1e-14 * expected);
  }
}

// Shards of an update, with equal contents in the host's memory and the device's.
class CudaUpdates : public CudaKernels {
 protected:
  // `absent`: arrays that no shard has. `positive`: arrays without negative elements.
  void make_shards(const std::array<DType, kMaxArrays>& dtypes, const std::vector<std::size_t>& absent,
                   const std::vector<std::size_t>& positive) {
    std::vector<std::size_t> sizes{1'000, 0, 3, 4'099};
    sizes.resize(130, 5);  // more than two launches
    const auto in = [](std::size_t a, const std::vector<std::size_t>& arrays) { return std::ranges::find(arrays, a) != arrays.end(); };
    host_.assign(sizes.size(), {});
    on_device_.clear();
    on_device_.resize(sizes.size());
    shards_.assign(sizes.size(), {});
    device_shards_.assign(sizes.size(), {});
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      shards_[s].numel = device_shards_[s].numel = sizes[s];
      for (std::size_t a = 0; a < kMaxArrays; ++a) {
        if (in(a, absent)) continue;
        std::vector<double> wide(sizes[s]);
        std::mt19937 random(static_cast<unsigned>(10 * s + a));
        for (auto& x : wide) x = std::uniform_real_distribution<double>(in(a, positive) ? 0 : -1, 1)(random);
        host_[s][a].resize(sizes[s] * dtype_bytes(dtypes[a]));
        cast(DType::kFloat64, reinterpret_cast<const std::byte*>(wide.data()), dtypes[a], host_[s][a].data(), sizes[s]);
        on_device_[s][a] = to_device(host_[s][a]);
        shards_[s].at[a] = host_[s][a].data();
        device_shards_[s].at[a] = on_device_[s][a].get().data();
      }
    }
  }
  void expect_same_bits() const {
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      for (std::size_t a = 0; a < kMaxArrays; ++a) {
        if (shards_[s].numel == 0 || !on_device_[s][a]) continue;
        EXPECT_EQ(from_device(on_device_[s][a]), host_[s][a]) << "shard " << s << ", array " << a;
      }
    }
  }

  std::vector<Shard> shards_, device_shards_;

 private:
  std::vector<std::array<Bytes, kMaxArrays>> host_;
  std::vector<std::array<DeviceMemory, kMaxArrays>> on_device_;
};

class CudaAdam : public CudaUpdates, public testing::WithParamInterface<Adam> {
 protected:
  void expect_same_steps(const std::array<DType, kMaxArrays>& dtypes, const std::vector<std::size_t>& absent) {
    const auto on = optim_kernels();
    make_shards(dtypes, absent, {AdamArrays::kV, AdamArrays::kMaxV});
    for (std::int64_t step = 1; step <= 3; ++step) {
      adam(GetParam(), step, dtypes, shards_, 1);
      ASSERT_TRUE(on.adam(GetParam(), step, dtypes, device_shards_, stream_.get()));
    }
    expect_same_bits();
  }
};

TEST_P(CudaAdam, HasTheBitsOfTheCpu) {
  using D = DType;
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add, and rounds twice";
  expect_same_steps({}, {AdamArrays::kMaxV, kCopy});
  expect_same_steps({}, {kCopy});
  expect_same_steps({D::kFloat32, D::kFloat32, D::kFloat32, D::kFloat32, D::kFloat32, D::kBFloat16}, {AdamArrays::kMaxV});
  expect_same_steps({D::kBFloat16, D::kBFloat16, D::kFloat32, D::kFloat32, D::kFloat32, D::kFloat16}, {});
  expect_same_steps({D::kFloat64, D::kFloat64, D::kFloat64, D::kFloat64, D::kFloat64, D::kFloat32}, {});
}

INSTANTIATE_TEST_SUITE_P(Options, CudaAdam,
                         testing::Values(Adam{}, Adam{.weight_decay = 0}, Adam{.weight_decay = 0.1, .decoupled = false},
                                         Adam{.maximize = true}, Adam{.grad_scale = 128}));

class CudaSgd : public CudaUpdates, public testing::WithParamInterface<Sgd> {
 protected:
  // The first of three steps makes the momentum from the gradient.
  void expect_same_steps(const std::array<DType, kMaxArrays>& dtypes, bool copy) {
    const auto on = optim_kernels();
    std::vector<std::size_t> absent{3, 4};  // SGD has one state
    if (GetParam().momentum == 0) absent.push_back(SgdArrays::kBuffer);
    if (!copy) absent.push_back(kCopy);
    make_shards(dtypes, absent, {});
    for (int step = 0; step < 3; ++step) {
      auto options = GetParam();
      options.first = step == 0;
      sgd(options, dtypes, shards_, 1);
      ASSERT_TRUE(on.sgd(options, dtypes, device_shards_, stream_.get()));
    }
    expect_same_bits();
  }
};

TEST_P(CudaSgd, HasTheBitsOfTheCpu) {
  using D = DType;
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add, and rounds twice";
  for (const auto dtype : kFloats) expect_same_steps({dtype, dtype, dtype}, false);
  expect_same_steps({D::kFloat32, D::kBFloat16, D::kFloat32, {}, {}, D::kBFloat16}, true);
  expect_same_steps({D::kFloat32, D::kFloat16, D::kFloat32, {}, {}, D::kFloat16}, true);
  expect_same_steps({D::kFloat32, D::kFloat64, D::kBFloat16}, false);
  expect_same_steps({D::kFloat64, D::kFloat32, D::kFloat16, {}, {}, D::kFloat32}, true);
}

INSTANTIATE_TEST_SUITE_P(Options, CudaSgd,
                         testing::Values(Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .weight_decay = 0.01}, Sgd{.lr = 0.1, .momentum = 0.9},
                                         Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01},
                                         Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}, Sgd{.lr = 0.1, .maximize = true},
                                         Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .maximize = true},
                                         Sgd{.lr = 0.1, .grad_scale = 96},
                                         Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .grad_scale = 96}));

TEST_F(CudaKernels, ABuildWithoutNvccRefusesThem) {
  const auto refused = DeviceKernels::load(device_, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnimplemented);
  EXPECT_EQ(refused.error().reason(), "NoKernels");
  EXPECT_NE(refused.error().message().find("nvcc was absent"), std::string::npos);
  EXPECT_EQ(DeviceOptim::load(device_, nullptr).error().reason(), "NoKernels");
}

TEST_F(CudaKernels, OptimizersRefuseIntegers) {
  const auto on = optim_kernels();
  EXPECT_EQ(on.adam({}, 1, {DType::kInt32}, {}, stream_.get()).error().code(), Code::kUnimplemented);
  EXPECT_EQ(on.sgd({}, {DType::kInt32}, {}, stream_.get()).error().code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace shoal::fsdp
