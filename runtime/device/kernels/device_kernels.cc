#include "runtime/device/kernels/device_kernels.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/device/kernels/bodies.h"
#include "runtime/device/kernels/reduction_body.h"

extern "C" const unsigned char kShoalDeviceKernels[];
extern "C" const unsigned kShoalDeviceKernels_bytes;

namespace shoal::runtime {

namespace {

constexpr unsigned kThreads = 256, kBlocksPerMultiprocessor = 8;

Result<void> check_float(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16:
      return {};
    default:
      return fail(unimplemented(fmt::format("kernels on devices do not compute with {}", dtype_name(dtype)))
                      .with_hint("use float32, float64, float16 or bfloat16"));
  }
}

}  // namespace

Result<KernelModule> load_kernels(const Device& device, const void* image) {
  if (image != nullptr) return device.load(image);
  return fail(unimplemented("this build of Shoal has no CUDA kernels, because nvcc was absent when it was built")
                  .with_reason("NoKernels")
                  .with_hint("install CUDA 13's nvcc (pip install -r requirements-cuda.txt), then bazel sync --configure and ./dev build"));
}

const std::size_t DeviceKernels::kSquareScratchBytes = (kernels::kSquareThreads + kernels::kSquareSums) * sizeof(double);

const void* DeviceKernels::embedded() { return kShoalDeviceKernels_bytes > 0 ? kShoalDeviceKernels : nullptr; }

Device::Shape DeviceKernels::shape_for(const Device& device, std::size_t numel) {
  const std::size_t most = static_cast<std::size_t>(device.num_multiprocessors()) * kBlocksPerMultiprocessor;
  const std::size_t blocks = std::clamp<std::size_t>((numel + kThreads - 1) / kThreads, 1, most);
  return {.blocks = static_cast<unsigned>(blocks), .threads = kThreads, .shared_bytes = 0};
}

Result<DeviceKernels> DeviceKernels::load(std::shared_ptr<const Device> device, const void* image) {
  DeviceKernels out;
  out.device_ = std::move(device);
  SHOAL_TRY(out.module_, load_kernels(*out.device_, image));
  SHOAL_TRY(out.cast_, out.device_->find(out.module_, "shoal_cast"));
  SHOAL_TRY(out.sum_, out.device_->find(out.module_, "shoal_sum"));
  SHOAL_TRY(out.reduce_, out.device_->find(out.module_, "shoal_reduce"));
  SHOAL_TRY(out.pack_, out.device_->find(out.module_, "shoal_pack"));
  SHOAL_TRY(out.square_, out.device_->find(out.module_, "shoal_square"));
  SHOAL_TRY(out.square_sums_, out.device_->find(out.module_, "shoal_square_sums"));
  SHOAL_TRY(out.square_total_, out.device_->find(out.module_, "shoal_square_total"));
  return out;
}

Result<void> DeviceKernels::cast(DType from, const void* in, DType to, void* out, std::size_t numel, CudaStream stream) const {
  SHOAL_OK(check_float(from));
  SHOAL_OK(check_float(to));
  if (numel == 0) return {};
  kernels::CastArguments arguments{in, out, numel, kernels::number(from), kernels::number(to)};
  void* addresses[] = {&arguments};
  return device_->launch(cast_, shape_for(*device_, numel), stream, addresses);
}

Result<void> DeviceKernels::sum(DType from, std::span<const void* const> sources, double scale, bool accumulate, DType to, void* out,
                                std::size_t numel, CudaStream stream) const {
  SHOAL_OK(check_float(from));
  SHOAL_OK(check_float(to));
  if (sources.empty() || sources.size() > kMaxSources)
    return fail(invalid_argument(fmt::format("a sum of {} sources: there may be 1 to {}", sources.size(), kMaxSources)));
  if (numel == 0) return {};
  kernels::SumArguments arguments{
      {}, out, numel, scale, static_cast<int>(sources.size()), kernels::number(from), kernels::number(to), accumulate};
  std::copy(sources.begin(), sources.end(), arguments.sources);
  void* addresses[] = {&arguments};
  return device_->launch(sum_, shape_for(*device_, numel), stream, addresses);
}

Result<void> DeviceKernels::reduce(DType dtype, kernels::Reduction op, std::span<const void* const> sources, void* out, std::size_t numel,
                                   CudaStream stream) const {
  if (dtype != DType::kInt8 && dtype != DType::kUInt8 && dtype != DType::kInt32 && dtype != DType::kInt64) SHOAL_OK(check_float(dtype));
  if (sources.empty() || sources.size() > kMaxSources)
    return fail(invalid_argument(fmt::format("a reduction of {} sources: there may be 1 to {}", sources.size(), kMaxSources)));
  if (numel == 0) return {};
  kernels::ReductionArguments arguments{{}, out, numel, static_cast<int>(sources.size()), kernels::number(dtype), op};
  std::copy(sources.begin(), sources.end(), arguments.sources);
  void* addresses[] = {&arguments};
  return device_->launch(reduce_, shape_for(*device_, numel), stream, addresses);
}

Result<DeviceKernels::Table> DeviceKernels::make_table(std::span<const Row> rows) const {
  std::vector<kernels::PackRow> on_device;
  Table table;
  for (const auto& row : rows) {
    on_device.push_back({row.data, row.offset, row.bytes});
    table.num_words += row.bytes / 16 + 1;
  }
  table.num_rows = rows.size();
  const std::size_t bytes = on_device.size() * sizeof(kernels::PackRow);
  SHOAL_TRY(table.memory, device_->allocate(bytes));
  SHOAL_TRY(const auto stream, device_->make_stream());
  SHOAL_OK(device_->copy(table.memory.get().data(), on_device.data(), bytes, stream.get()));
  SHOAL_OK(device_->synchronize(stream.get()));
  return table;
}

Result<void> DeviceKernels::run_pack(const Table& table, void* buffer, bool unpack, CudaStream stream) const {
  if (table.num_rows == 0) return {};
  kernels::PackArguments arguments{reinterpret_cast<const kernels::PackRow*>(table.memory.get().data()), table.num_rows,
                                   static_cast<std::uint8_t*>(buffer), unpack};
  void* addresses[] = {&arguments};
  return device_->launch(pack_, shape_for(*device_, table.num_words), stream, addresses);
}

Result<void> DeviceKernels::pack(const Table& table, void* buffer, CudaStream stream) const {
  return run_pack(table, buffer, false, stream);
}

Result<void> DeviceKernels::unpack(const Table& table, void* buffer, CudaStream stream) const {
  return run_pack(table, buffer, true, stream);
}

Result<void> DeviceKernels::square_sum(DType dtype, const void* in, std::size_t numel, double* out, void* scratch,
                                       CudaStream stream) const {
  SHOAL_OK(check_float(dtype));
  kernels::SquareArguments arguments{in, numel, static_cast<double*>(scratch), out, kernels::number(dtype)};
  void* addresses[] = {&arguments};
  SHOAL_OK(device_->launch(square_, {.blocks = kernels::kSquareThreads / kThreads, .threads = kThreads}, stream, addresses));
  SHOAL_OK(device_->launch(square_sums_, {.blocks = 1, .threads = kernels::kSquareSums}, stream, addresses));
  return device_->launch(square_total_, {.blocks = 1, .threads = 1}, stream, addresses);
}

}  // namespace shoal::runtime
