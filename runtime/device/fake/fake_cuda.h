// Eight CUDA devices of this process, for tests: host memory as device memory, and a thread per stream. Order and refusals are the
// driver's. A misuse is also recorded as a violation, which the test reads.
//
// There is one machine per process, because the driver's functions have no argument that could name one of several.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/device/cuda_api.h"

namespace shoal::runtime {

class FakeCuda {
 public:
  ~FakeCuda();
  static constexpr int kDevices = 8;
  static FakeCuda& machine();
  const CudaApi& api() const;

  // ---- for a test to decide ----

  // While one exists, memory of the host that CUDA has not allocated counts as memory of every device.
  class HostMemoryCounts {
   public:
    HostMemoryCounts() { machine().change_host_memory(1); }
    ~HostMemoryCounts() { machine().change_host_memory(-1); }
    HostMemoryCounts(const HostMemoryCounts&) = delete;
  };
  // The next call of a function of CudaApi fails: "allocate", "copy", "launch", "stream", "event", "module", "record",
  // "register".
  void fail_next(const std::string& function, CudaStatus status);
  void set_capacity(std::size_t bytes);   // for each device
  void set_orders_by_words(bool orders);  // for devices that are opened from now on
  void hold_closing(bool hold);           // the closing of another process's memory is stuck until hold_closing(false)
  // A kernel with the sizes of its arguments. `run` gets the address of each, and the number of threads in all.
  using Kernel = std::function<void(void* const* arguments, std::size_t num_threads)>;
  void add_kernel(const std::string& name, std::vector<std::size_t> argument_bytes, Kernel run);

  // ---- for a test to read ----

  std::vector<std::string> take_violations();
  std::size_t num_allocations() const;  // allocations that exist
  std::size_t num_streams() const;
  std::size_t num_events() const;
  std::size_t num_registered() const;  // pieces of the host's memory
  std::size_t num_closing() const;     // threads in hold_closing()

  // ---- for other fakes ----

  void violation(std::string what);
  int current_device() const;              // this thread's; -1 without one
  int device_of(CudaStream stream) const;  // -1 if there is no such stream
  bool on_device(const void* data, std::size_t bytes, int device) const;
  void enqueue(CudaStream stream, std::function<void()> work);

 private:
  FakeCuda();
  friend struct FakeDriver;
  friend struct FakeMemory;
  struct Allocation {
    std::size_t bytes;
    int device;
  };
  struct KernelEntry {
    std::vector<std::size_t> argument_bytes;
    Kernel run;
  };

  void change_host_memory(int by);
  CudaStream default_stream(int device);
  // With the mutex: the allocation that holds the whole range; nullptr for memory of the host. Sets *crosses if the range leaves an
  // allocation.
  const Allocation* find(CudaAddress address, std::size_t bytes, bool* crosses) const;
  CudaStatus take_failure(const std::string& function);

  mutable std::mutex mutex_;
  int host_counts_ = 0;
  std::size_t capacity_ = std::size_t{1} << 30;
  bool orders_by_words_ = true, hold_closing_ = false;
  std::size_t num_closing_ = 0;
  std::condition_variable closing_;
  std::map<void*, std::size_t> registered_;  // bytes of the host's memory
  std::map<std::string, CudaStatus> failures_;
  std::map<std::string, KernelEntry> kernels_;
  std::map<CudaAddress, Allocation> allocations_;
  std::set<CudaStream> streams_;
  std::map<int, std::unique_ptr<CUstream_st>> default_streams_;  // by device; made with the first use
  std::set<CudaEvent> events_;
  std::set<CudaModule> modules_;
  std::vector<std::string> violations_;
};

}  // namespace shoal::runtime
