#include "fsdp/kernels/cuda/device_optim.h"

#include <algorithm>

#include <fmt/format.h>

#include "fsdp/kernels/cuda/adam_body.h"
#include "fsdp/kernels/cuda/sgd_body.h"
#include "runtime/device/kernels/device_kernels.h"

extern "C" const unsigned char kShoalOptimKernels[];
extern "C" const unsigned kShoalOptimKernels_bytes;

namespace shoal::fsdp {

static_assert(cuda::kCopy == int{kCopy} && cuda::kNumArrays == int{kMaxArrays});
static_assert(cuda::kP == int{AdamArrays::kP} && cuda::kG == int{AdamArrays::kG} && cuda::kMaxV == int{AdamArrays::kMaxV});
static_assert(cuda::kP == int{SgdArrays::kP} && cuda::kG == int{SgdArrays::kG} && cuda::kBuffer == int{SgdArrays::kBuffer});

namespace {

using runtime::Device;

Result<void> check(const std::array<DType, kMaxArrays>& dtypes) {
  for (const auto dtype : dtypes) {
    if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) continue;
    return fail(unimplemented(fmt::format("optimizers on devices do not compute with {}", dtype_name(dtype)))
                    .with_hint("use float32, float64, float16 or bfloat16"));
  }
  return {};
}

template <class Constants>
Result<void> run(const Device& device, runtime::CudaFunction kernel, const Constants& constants,
                 const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards, runtime::CudaStream stream) {
  for (std::size_t begin = 0; begin < shards.size(); begin += cuda::kMaxShards) {
    const auto batch = shards.subspan(begin, std::min<std::size_t>(cuda::kMaxShards, shards.size() - begin));
    cuda::UpdateArguments<Constants> arguments{};
    arguments.constants = constants;
    arguments.num_shards = batch.size();
    std::transform(dtypes.begin(), dtypes.end(), arguments.dtypes, [](DType d) { return runtime::kernels::number(d); });
    std::size_t numel = 0;
    for (std::size_t s = 0; s < batch.size(); ++s) {
      std::copy(batch[s].at.begin(), batch[s].at.end(), arguments.shards[s].at);
      arguments.shards[s].numel = batch[s].numel;
      numel += batch[s].numel;
    }
    if (numel == 0) continue;
    void* addresses[] = {&arguments};
    SHOAL_OK(device.launch(kernel, runtime::DeviceKernels::shape_for(device, numel), stream, addresses));
  }
  return {};
}

bool wide(const std::array<DType, kMaxArrays>& dtypes) { return dtypes[cuda::kP] == DType::kFloat64; }

}  // namespace

const void* DeviceOptim::embedded() { return kShoalOptimKernels_bytes > 0 ? kShoalOptimKernels : nullptr; }

Result<DeviceOptim> DeviceOptim::load(std::shared_ptr<const Device> device, const void* image) {
  DeviceOptim out;
  out.device_ = std::move(device);
  SHOAL_TRY(out.module_, runtime::load_kernels(*out.device_, image));
  SHOAL_TRY(out.adam_f32_, out.device_->find(out.module_, "shoal_adam_f32"));
  SHOAL_TRY(out.adam_f64_, out.device_->find(out.module_, "shoal_adam_f64"));
  SHOAL_TRY(out.sgd_f32_, out.device_->find(out.module_, "shoal_sgd_f32"));
  SHOAL_TRY(out.sgd_f64_, out.device_->find(out.module_, "shoal_sgd_f64"));
  return out;
}

Result<void> DeviceOptim::adam(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes,
                               std::span<const Shard> shards, runtime::CudaStream stream) const {
  SHOAL_OK(check(dtypes));
  if (wide(dtypes)) return run(*device_, adam_f64_, adam_constants<double>(options, step), dtypes, shards, stream);
  return run(*device_, adam_f32_, adam_constants<float>(options, step), dtypes, shards, stream);
}

Result<void> DeviceOptim::sgd(const Sgd& options, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards,
                              runtime::CudaStream stream) const {
  SHOAL_OK(check(dtypes));
  if (wide(dtypes)) return run(*device_, sgd_f64_, sgd_constants<double>(options), dtypes, shards, stream);
  return run(*device_, sgd_f32_, sgd_constants<float>(options), dtypes, shards, stream);
}

}  // namespace shoal::fsdp
