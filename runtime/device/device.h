// One CUDA device of this process: its streams, events, memory and kernels.
//
// A Device holds the primary context, which it shares with torch. Its functions set the context for their own duration only, so that
// any thread may call them. Copies and kernels run in the order of their stream; a buffer is used until the stream has passed the call.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/device/cuda_api.h"

namespace shoal::runtime {

class Device;

// A handle of the driver, with the device that it belongs to. The device's context lives at least as long as the handle.
template <class Handle, class Destroy>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(std::shared_ptr<const Device> device, Handle handle) : device_(std::move(device)), handle_(handle) {}
  DeviceHandle(DeviceHandle&& other) noexcept : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, Handle{})) {}
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::move(other.device_);
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~DeviceHandle() { reset(); }

  Handle get() const { return handle_; }
  explicit operator bool() const { return device_ != nullptr; }
  void reset() {
    if (device_ != nullptr) Destroy()(*device_, handle_);
    device_.reset();
  }

 private:
  std::shared_ptr<const Device> device_;
  Handle handle_{};
};

struct DestroyStream {
  void operator()(const Device& device, CudaStream stream) const;
};
struct DestroyEvent {
  void operator()(const Device& device, CudaEvent event) const;
};
struct UnloadModule {
  void operator()(const Device& device, CudaModule module) const;
};
struct FreeMemory {
  void operator()(const Device& device, std::span<std::byte> memory) const;
};
struct CloseMemory {
  void operator()(const Device& device, std::span<std::byte> memory) const;
};

struct UnregisterMemory {
  void operator()(const Device& device, std::span<std::byte> memory) const;
};

using Stream = DeviceHandle<CudaStream, DestroyStream>;
using Event = DeviceHandle<CudaEvent, DestroyEvent>;
using KernelModule = DeviceHandle<CudaModule, UnloadModule>;
using DeviceMemory = DeviceHandle<std::span<std::byte>, FreeMemory>;
using PeerMemory = DeviceHandle<std::span<std::byte>, CloseMemory>;             // memory that another process allocated
using RegisteredMemory = DeviceHandle<std::span<std::byte>, UnregisterMemory>;  // memory of the host that the device may use

class Device : public std::enable_shared_from_this<Device> {
 public:
  static Result<int> count(const CudaApi& api);
  // InvalidArgument if there is no such device, Unavailable/NoCuda if there is none at all.
  static Result<std::shared_ptr<Device>> open(const CudaApi& api, int ordinal);
  ~Device();
  Device(const Device&) = delete;

  const CudaApi& api() const { return api_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const CudaUuid& uuid() const { return uuid_; }  // the same in every process, whatever ordinals it sees
  int num_multiprocessors() const { return num_multiprocessors_; }

  // The device is the calling thread's current one for the life of this object.
  class Current {
   public:
    explicit Current(const Device& device) : api_(device.api_) { pushed_ = api_.context_push(device.context_) == cuda::kSuccess; }
    ~Current() {
      CudaContext context = nullptr;
      if (pushed_) (void)api_.context_pop(&context);
    }
    Current(const Current&) = delete;

   private:
    const CudaApi& api_;
    bool pushed_ = false;
  };

  // A stream that does not wait for the default stream.
  Result<Stream> make_stream() const;
  enum class EventUse { kOrder, kTiming, kInterprocess };
  Result<Event> make_event(EventUse use = EventUse::kOrder) const;
  Result<void> record(const Event& event, CudaStream stream) const;
  // Later work of `stream` waits for the last record of `event`.
  Result<void> wait(CudaStream stream, const Event& event) const;
  // True once the device has passed the last record of `event`.
  Result<bool> passed(const Event& event) const;
  Result<float> milliseconds(const Event& from, const Event& to) const;
  Result<void> synchronize(CudaStream stream) const;

  // ResourceExhausted/DeviceMemory without room.
  Result<DeviceMemory> allocate(std::size_t bytes) const;
  struct Room {
    std::size_t free = 0, total = 0;
  };
  Result<Room> room() const;
  // Copies between any two of: this device, another device of this process, memory of the host.
  Result<void> copy(void* to, const void* from, std::size_t bytes, CudaStream stream) const;
  Result<void> zero(void* to, std::size_t bytes, CudaStream stream) const;
  // InvalidArgument unless `data` is memory of this device. `what` names it in the error: "the input".
  Result<void> check_memory(std::span<const std::byte> data, std::string_view what) const;

  // Memory and events across processes of one host. A handle is valid while its owner keeps the memory or event.
  // Close opened memory before the owner frees it.
  Result<CudaIpcHandle> share(const DeviceMemory& memory) const;
  Result<PeerMemory> open_shared(const CudaIpcHandle& handle, std::size_t bytes) const;
  Result<CudaIpcHandle> share(const Event& event) const;  // the event is made with kInterprocess
  Result<Event> open_shared_event(const CudaIpcHandle& handle) const;

  // True if streams can write words of the host's memory and wait for them; a write by the host ends such a wait, too. False where the
  // driver or the device lacks this.
  bool orders_by_words() const { return orders_by_words_; }
  // The memory may be shared with other processes. It stays mapped as long as the returned object exists.
  Result<RegisteredMemory> register_memory(std::span<std::byte> memory) const;
  // Later work of `stream` waits until `word`, in registered memory, is at least `value`, modulo 2^64.
  Result<void> wait(CudaStream stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) const;
  // `stream` writes `value` to the word after its earlier work, whose effects other devices then see.
  Result<void> write(CudaStream stream, std::atomic<std::uint64_t>& word, std::uint64_t value) const;

  // Loads a fatbin. Unimplemented/NoKernels if it has no code for this device.
  Result<KernelModule> load(const void* image) const;
  Result<CudaFunction> find(const KernelModule& module, const char* kernel) const;
  struct Shape {
    unsigned blocks = 1, threads = 256, shared_bytes = 0;
  };
  // `arguments`: the address of each argument of the kernel, in order.
  Result<void> launch(CudaFunction kernel, Shape shape, CudaStream stream, void** arguments) const;

 private:
  Device(const CudaApi& api, int ordinal) : api_(api), ordinal_(ordinal) {}
  Result<void> check(CudaStatus status, std::string_view what) const;
  Result<CudaAddress> registered(const void* memory) const;

  const CudaApi& api_;
  const int ordinal_;
  int device_ = 0;
  CudaContext context_ = nullptr;
  std::string name_;
  CudaUuid uuid_{};
  int num_multiprocessors_ = 0;
  bool orders_by_words_ = false;
};

}  // namespace shoal::runtime
