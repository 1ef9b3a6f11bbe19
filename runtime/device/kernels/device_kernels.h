// Kernels on a device: conversions, sums, packing of many parameters, a norm's part. Each call is in the order of its stream, and returns
// at once; its buffers are memory of the device.
#pragma once

#include <memory>
#include <span>

#include "runtime/core/dtype.h"
#include "runtime/device/device.h"

namespace shoal::runtime {

namespace kernels {
enum class Reduction : std::uint8_t;
}

// Loads embedded kernels. Unimplemented/NoKernels if `image` is null, because this build had no nvcc, or has no code for this device.
Result<KernelModule> load_kernels(const Device& device, const void* image);

class DeviceKernels {
 public:
  // The kernels of this build; null if it had no nvcc.
  static const void* embedded();
  static Result<DeviceKernels> load(std::shared_ptr<const Device> device, const void* image = embedded());

  // out[i] = in[i] in another floating-point dtype, as fsdp/kernels/cast.h.
  Result<void> cast(DType from, const void* in, DType to, void* out, std::size_t numel, CudaStream stream) const;

  static constexpr std::size_t kMaxSources = 64;
  // out[i] = ((sources[0][i] + sources[1][i]) + ...) * scale, or added to out[i]. Sums are fp32, or fp64 if a dtype is, and rounded once.
  Result<void> sum(DType from, std::span<const void* const> sources, double scale, bool accumulate, DType to, void* out, std::size_t numel,
                   CudaStream stream) const;

  // out[i] = sources[0][i] op sources[1][i] op ..., as a collective reduces (runtime/transport/reduction.h), with the same bits. Dtypes:
  // floating-point ones, int8, uint8, int32, int64. `out` may be one of the sources.
  Result<void> reduce(DType dtype, kernels::Reduction op, std::span<const void* const> sources, void* out, std::size_t numel,
                      CudaStream stream) const;

  // A parameter and its place in a buffer.
  struct Row {
    void* data = nullptr;
    std::size_t offset = 0, bytes = 0;
  };
  // Rows in memory of the device.
  struct Table {
    DeviceMemory memory;
    std::size_t num_rows = 0, num_words = 0;
  };
  Result<Table> make_table(std::span<const Row> rows) const;
  // Copies the rows into `buffer`, each to its offset.
  Result<void> pack(const Table& table, void* buffer, CudaStream stream) const;
  Result<void> unpack(const Table& table, void* buffer, CudaStream stream) const;

  // The sum of the squares of floating-point elements, in fp64: *out, on the device. Equal elements give equal bits. `scratch`: memory of
  // kSquareScratchBytes, which one call at a time uses.
  static const std::size_t kSquareScratchBytes;
  Result<void> square_sum(DType dtype, const void* in, std::size_t numel, double* out, void* scratch, CudaStream stream) const;

  // How many blocks of 256 threads suffice for `numel` elements.
  static Device::Shape shape_for(const Device& device, std::size_t numel);

 private:
  DeviceKernels() = default;
  Result<void> run_pack(const Table& table, void* buffer, bool unpack, CudaStream stream) const;

  std::shared_ptr<const Device> device_;
  KernelModule module_;
  CudaFunction cast_ = nullptr, sum_ = nullptr, reduce_ = nullptr, pack_ = nullptr, square_ = nullptr, square_sums_ = nullptr,
               square_total_ = nullptr;
};

}  // namespace shoal::runtime
