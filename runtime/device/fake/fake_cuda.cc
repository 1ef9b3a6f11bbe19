#include "runtime/device/fake/fake_cuda.h"

#include "runtime/device/fake/fake_stream.h"

namespace shoal::runtime {

FakeCuda& FakeCuda::machine() {
  static auto* const machine = new FakeCuda;  // never destroyed, as the driver outlives a process's objects
  return *machine;
}

FakeCuda::FakeCuda() = default;
FakeCuda::~FakeCuda() = default;

CudaStream FakeCuda::default_stream(int device) {
  const std::lock_guard lock(mutex_);
  auto& stream = default_streams_[device];
  if (stream == nullptr) stream = std::make_unique<CUstream_st>(device);
  return stream.get();
}

void FakeCuda::change_host_memory(int by) {
  const std::lock_guard lock(mutex_);
  host_counts_ += by;
}

void FakeCuda::fail_next(const std::string& function, CudaStatus status) {
  const std::lock_guard lock(mutex_);
  failures_[function] = status;
}

void FakeCuda::set_capacity(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void FakeCuda::hold_closing(bool hold) {
  {
    const std::lock_guard lock(mutex_);
    hold_closing_ = hold;
  }
  closing_.notify_all();
}

std::size_t FakeCuda::num_closing() const {
  const std::lock_guard lock(mutex_);
  return num_closing_;
}

void FakeCuda::set_orders_by_words(bool orders) {
  const std::lock_guard lock(mutex_);
  orders_by_words_ = orders;
}

std::size_t FakeCuda::num_registered() const {
  const std::lock_guard lock(mutex_);
  return registered_.size();
}

void FakeCuda::add_kernel(const std::string& name, std::vector<std::size_t> argument_bytes, Kernel run) {
  const std::lock_guard lock(mutex_);
  kernels_[name] = {std::move(argument_bytes), std::move(run)};
}

std::vector<std::string> FakeCuda::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

std::size_t FakeCuda::num_allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_.size();
}

std::size_t FakeCuda::num_streams() const {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}

std::size_t FakeCuda::num_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

void FakeCuda::violation(std::string what) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(std::move(what));
}

int FakeCuda::device_of(CudaStream stream) const {
  const std::lock_guard lock(mutex_);
  return streams_.count(stream) > 0 ? stream->device : -1;
}

bool FakeCuda::on_device(const void* data, std::size_t bytes, int device) const {
  const std::lock_guard lock(mutex_);
  bool crosses = false;
  const auto* const found = find(reinterpret_cast<CudaAddress>(data), bytes, &crosses);
  return found != nullptr ? found->device == device : host_counts_ > 0 && !crosses;
}

void FakeCuda::enqueue(CudaStream stream, std::function<void()> work) { stream->enqueue(std::move(work)); }

const FakeCuda::Allocation* FakeCuda::find(CudaAddress address, std::size_t bytes, bool* crosses) const {
  const auto next = allocations_.upper_bound(address);
  if (next != allocations_.end() && address + bytes > next->first) *crosses = true;
  if (next == allocations_.begin()) return nullptr;
  const auto& [begin, allocation] = *std::prev(next);
  if (address >= begin + allocation.bytes) return nullptr;
  if (address + bytes <= begin + allocation.bytes) return &allocation;
  *crosses = true;
  return nullptr;
}

CudaStatus FakeCuda::take_failure(const std::string& function) {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(function);
  if (found == failures_.end()) return cuda::kSuccess;
  const auto status = found->second;
  failures_.erase(found);
  return status;
}

}  // namespace shoal::runtime
