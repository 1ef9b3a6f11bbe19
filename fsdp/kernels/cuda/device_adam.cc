#include "fsdp/kernels/cuda/device_adam.h"

#include <algorithm>

#include <fmt/format.h>

#include "fsdp/kernels/cuda/adam_body.h"
#include "runtime/device/kernels/device_kernels.h"

extern "C" const unsigned char kShoalAdamKernels[];
extern "C" const unsigned kShoalAdamKernels_bytes;

namespace shoal::fsdp {

static_assert(cuda::kP == int{AdamArrays::kP} && cuda::kMaxV == int{AdamArrays::kMaxV} && cuda::kCopy == int{kCopy} &&
              cuda::kNumArrays == int{kMaxArrays});

namespace {

using runtime::Device;

Result<void> check(const std::array<DType, kMaxArrays>& dtypes) {
  for (const auto dtype : dtypes) {
    if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) continue;
    return fail(unimplemented(fmt::format("Adam on devices does not compute with {}", dtype_name(dtype)))
                    .with_hint("use float32, float64, float16 or bfloat16"));
  }
  return {};
}

template <class T>
Result<void> run(const Device& device, runtime::CudaFunction kernel, const AdamConstants<T>& constants,
                 const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards, runtime::CudaStream stream) {
  for (std::size_t begin = 0; begin < shards.size(); begin += cuda::kMaxShards) {
    const auto batch = shards.subspan(begin, std::min<std::size_t>(cuda::kMaxShards, shards.size() - begin));
    cuda::AdamArguments<T> arguments{};
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

}  // namespace

const void* DeviceAdam::embedded() { return kShoalAdamKernels_bytes > 0 ? kShoalAdamKernels : nullptr; }

Result<DeviceAdam> DeviceAdam::load(std::shared_ptr<const Device> device, const void* image) {
  DeviceAdam out;
  out.device_ = std::move(device);
  SHOAL_TRY(out.module_, runtime::load_kernels(*out.device_, image));
  SHOAL_TRY(out.f32_, out.device_->find(out.module_, "shoal_adam_f32"));
  SHOAL_TRY(out.f64_, out.device_->find(out.module_, "shoal_adam_f64"));
  return out;
}

Result<void> DeviceAdam::step(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes,
                              std::span<const Shard> shards, runtime::CudaStream stream) const {
  SHOAL_OK(check(dtypes));
  if (dtypes[AdamArrays::kP] == DType::kFloat64) return run(*device_, f64_, adam_constants<double>(options, step), dtypes, shards, stream);
  return run(*device_, f32_, adam_constants<float>(options, step), dtypes, shards, stream);
}

}  // namespace shoal::fsdp
