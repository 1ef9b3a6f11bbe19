#include "fsdp/kernels/cuda/device_adam.h"

#include <algorithm>
#include <vector>

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
                 const std::array<DType, kMaxArrays>& dtypes, const DeviceAdam::Table& table, runtime::CudaStream stream) {
  cuda::AdamArguments<T> arguments{constants, reinterpret_cast<const cuda::AdamShard*>(table.memory.get().data()), table.num_shards, {}};
  std::transform(dtypes.begin(), dtypes.end(), arguments.dtypes, [](DType d) { return runtime::kernels::number(d); });
  void* addresses[] = {&arguments};
  return device.launch(kernel, runtime::DeviceKernels::shape_for(device, table.numel), stream, addresses);
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

Result<DeviceAdam::Table> DeviceAdam::make_table(std::span<const Shard> shards) const {
  std::vector<cuda::AdamShard> on_device;
  Table table;
  for (const auto& shard : shards) {
    auto& row = on_device.emplace_back();
    std::copy(shard.at.begin(), shard.at.end(), row.at);
    row.numel = shard.numel;
    table.numel += shard.numel;
  }
  table.num_shards = shards.size();
  const std::size_t bytes = on_device.size() * sizeof(cuda::AdamShard);
  SHOAL_TRY(table.memory, device_->allocate(bytes));
  SHOAL_TRY(const auto stream, device_->make_stream());
  SHOAL_OK(device_->copy(table.memory.get().data(), on_device.data(), bytes, stream.get()));
  SHOAL_OK(device_->synchronize(stream.get()));
  return table;
}

Result<void> DeviceAdam::step(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes, const Table& table,
                              runtime::CudaStream stream) const {
  SHOAL_OK(check(dtypes));
  if (table.numel == 0) return {};
  if (dtypes[AdamArrays::kP] == DType::kFloat64) return run(*device_, f64_, adam_constants<double>(options, step), dtypes, table, stream);
  return run(*device_, f32_, adam_constants<float>(options, step), dtypes, table, stream);
}

}  // namespace shoal::fsdp
