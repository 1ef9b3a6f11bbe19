// The functions of CudaApi. Each refuses what the driver refuses, and records a violation for what only a wrong program does.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/device/fake/fake_stream.h"

namespace shoal::runtime {

namespace {

thread_local std::vector<int> current;  // this thread's stack of devices; the last one is current

FakeCuda& machine() { return FakeCuda::machine(); }

CudaStatus refuse(CudaStatus status, std::string what) {
  machine().violation(std::move(what));
  return status;
}

CUctx_st* contexts() {
  static CUctx_st all[FakeCuda::kDevices] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  return all;
}

// A handle: the address of exported memory or of an event, because the other ranks are threads of this process.
CudaIpcHandle handle_of(const void* what) {
  CudaIpcHandle handle{};
  std::memcpy(handle.bytes, &what, sizeof what);
  return handle;
}
void* exported(const CudaIpcHandle& handle) {
  void* out = nullptr;
  std::memcpy(&out, handle.bytes, sizeof out);
  return out;
}

}  // namespace

int FakeCuda::current_device() const { return current.empty() ? -1 : current.back(); }

struct FakeDriver {
  static bool live(CudaStream stream) {
    const std::lock_guard lock(machine().mutex_);
    return machine().streams_.count(stream) > 0;
  }
  static bool live(CudaEvent event) {
    const std::lock_guard lock(machine().mutex_);
    return machine().events_.count(event) > 0;
  }
  // Checks that the stream exists and belongs to the current device. Null stands for that device's default stream.
  static CudaStatus check(CudaStream& stream) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "a call without a current device");
    if (stream == nullptr) {
      stream = machine().default_stream(current.back());
      return cuda::kSuccess;
    }
    if (!live(stream)) return refuse(cuda::kInvalidHandle, "a stream that does not exist");
    if (stream->device != current.back())
      return refuse(cuda::kInvalidHandle, fmt::format("a stream of device {} used on device {}", stream->device, current.back()));
    return cuda::kSuccess;
  }

  // ---- devices ----
  static CudaStatus init(unsigned) { return cuda::kSuccess; }
  static CudaStatus driver_version(int* version) {
    *version = 13000;
    return cuda::kSuccess;
  }
  static CudaStatus error_name(CudaStatus, const char** name) {
    *name = "CUDA_ERROR_OF_THE_FAKE";
    return cuda::kSuccess;
  }
  static CudaStatus error_string(CudaStatus, const char** text) {
    *text = "an error of the fake";
    return cuda::kSuccess;
  }
  static CudaStatus device_count(int* count) {
    *count = FakeCuda::kDevices;
    return cuda::kSuccess;
  }
  static CudaStatus device_get(int* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < FakeCuda::kDevices ? cuda::kSuccess : cuda::kInvalidDevice;
  }
  static CudaStatus device_name(char* name, int bytes, int) {
    std::strncpy(name, "Fake", static_cast<std::size_t>(bytes));
    return cuda::kSuccess;
  }
  static CudaStatus device_uuid(CudaUuid* uuid, int device) {
    *uuid = {};
    uuid->bytes[0] = static_cast<char>(device + 1);
    return cuda::kSuccess;
  }
  static CudaStatus device_attribute(int* value, int attribute, int) {
    if (attribute == cuda::kAttributeStreamMemory64) {
      const std::lock_guard lock(machine().mutex_);
      *value = machine().orders_by_words_ ? 1 : 0;
      return cuda::kSuccess;
    }
    *value = attribute == cuda::kAttributeMultiprocessors ? 4 : 0;
    return cuda::kSuccess;
  }
  static CudaStatus context_retain(CudaContext* context, int device) {
    *context = &contexts()[device];
    return cuda::kSuccess;
  }
  static CudaStatus context_release(int) { return cuda::kSuccess; }
  static CudaStatus context_push(CudaContext context) {
    current.push_back(context->device);
    return cuda::kSuccess;
  }
  static CudaStatus context_pop(CudaContext* context) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "a pop without a push");
    *context = &contexts()[current.back()];
    current.pop_back();
    return cuda::kSuccess;
  }
  static CudaStatus context_device(int* device) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "the device of no context");
    *device = current.back();
    return cuda::kSuccess;
  }

  // ---- streams and events ----
  static CudaStatus stream_create(CudaStream* stream, unsigned) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "a stream without a current device");
    if (const auto status = machine().take_failure("stream"); status != cuda::kSuccess) return status;
    *stream = new CUstream_st(current.back());
    const std::lock_guard lock(machine().mutex_);
    machine().streams_.insert(*stream);
    return cuda::kSuccess;
  }
  static CudaStatus stream_destroy(CudaStream stream) {
    if (!live(stream)) return refuse(cuda::kInvalidHandle, "a stream destroyed twice");
    {
      const std::lock_guard lock(machine().mutex_);
      machine().streams_.erase(stream);
    }
    delete stream;
    return cuda::kSuccess;
  }
  static CudaStatus stream_synchronize(CudaStream stream) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    stream->synchronize();
    return cuda::kSuccess;
  }
  static CudaStatus stream_wait_event(CudaStream stream, CudaEvent event, unsigned) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    if (!live(event)) return refuse(cuda::kInvalidHandle, "an event that does not exist");
    const auto records = event->records;
    const std::unique_lock lock(records->mutex);
    stream->enqueue([records, number = records->recorded] {
      std::unique_lock waiting(records->mutex);
      records->changed.wait(waiting, [&] { return records->passed >= number; });
    });
    return cuda::kSuccess;
  }
  // The word, if it is an aligned one in registered memory.
  static std::atomic<std::uint64_t>* word_at(CudaAddress address) {
    const std::lock_guard lock(machine().mutex_);
    auto* const word = reinterpret_cast<std::byte*>(address);
    for (const auto& [memory, bytes] : machine().registered_) {
      const auto* const begin = static_cast<std::byte*>(memory);
      if (word >= begin && word + sizeof(std::uint64_t) <= begin + bytes && address % sizeof(std::uint64_t) == 0)
        return reinterpret_cast<std::atomic<std::uint64_t>*>(word);
    }
    return nullptr;
  }
  // Ranks map a word at several addresses, between which ThreadSanitizer sees no order. So all uses of words have one lock.
  static std::mutex& words_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static CudaStatus stream_write_value(CudaStream stream, CudaAddress address, std::uint64_t value, unsigned flags) {
    if (const auto status = check(stream); status != cuda::kSuccess) return status;
    auto* const word = word_at(address);
    if (word == nullptr || flags != cuda::kWriteBehindBarrier) return refuse(cuda::kInvalidValue, "a word that is not registered");
    stream->enqueue([word, value] {
      const std::lock_guard lock(words_mutex());
      word->store(value, std::memory_order_release);
    });
    return cuda::kSuccess;
  }
  static CudaStatus stream_wait_value(CudaStream stream, CudaAddress address, std::uint64_t value, unsigned flags) {
    if (const auto status = check(stream); status != cuda::kSuccess) return status;
    const auto* const word = word_at(address);
    if (word == nullptr || flags != cuda::kWaitUntilAtLeast) return refuse(cuda::kInvalidValue, "a word that is not registered");
    stream->enqueue([word, value] {
      const auto passed = [&] {
        const std::lock_guard lock(words_mutex());
        return static_cast<std::int64_t>(word->load(std::memory_order_acquire) - value) >= 0;
      };
      while (!passed()) std::this_thread::sleep_for(std::chrono::microseconds(20));  // a write by the host notifies nothing
    });
    return cuda::kSuccess;
  }
  static CudaStatus event_create(CudaEvent* event, unsigned flags) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "an event without a current device");
    if (const auto status = machine().take_failure("event"); status != cuda::kSuccess) return status;
    if ((flags & cuda::kEventInterprocess) != 0 && (flags & cuda::kEventDisableTiming) == 0) return cuda::kInvalidValue;
    *event = new CUevent_st{current.back(), flags};
    const std::lock_guard lock(machine().mutex_);
    machine().events_.insert(*event);
    return cuda::kSuccess;
  }
  static CudaStatus event_destroy(CudaEvent event) {
    if (!live(event)) return refuse(cuda::kInvalidHandle, "an event destroyed twice");
    const std::lock_guard lock(machine().mutex_);
    machine().events_.erase(event);
    delete event;
    return cuda::kSuccess;
  }
  static CudaStatus event_record(CudaEvent event, CudaStream stream) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    if (!live(event)) return refuse(cuda::kInvalidHandle, "an event that does not exist");
    if (const auto status = machine().take_failure("record"); status != cuda::kSuccess) return status;
    if (event->device != stream->device)
      return refuse(cuda::kInvalidHandle, fmt::format("an event of device {} recorded on device {}", event->device, stream->device));
    const auto records = event->records;
    const std::lock_guard lock(records->mutex);
    stream->enqueue([records, number = ++records->recorded] {
      const std::lock_guard passing(records->mutex);
      records->passed = std::max(records->passed, number);
      records->at = std::chrono::steady_clock::now();
      records->changed.notify_all();
    });
    return cuda::kSuccess;
  }
  static CudaStatus event_query(CudaEvent event) {
    if (!live(event)) return refuse(cuda::kInvalidHandle, "an event that does not exist");
    const std::lock_guard lock(event->records->mutex);
    return event->records->passed >= event->records->recorded ? cuda::kSuccess : cuda::kNotReady;
  }
  static CudaStatus event_elapsed(float* ms, CudaEvent from, CudaEvent to) {
    if (((from->flags | to->flags) & cuda::kEventDisableTiming) != 0)
      return refuse(cuda::kInvalidHandle, "an event without times measured");
    *ms = std::chrono::duration<float, std::milli>(to->records->at - from->records->at).count();
    return cuda::kSuccess;
  }
};

struct FakeMemory {
  static CudaStatus memory_allocate(CudaAddress* address, std::size_t bytes) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "an allocation without a current device");
    if (const auto status = machine().take_failure("allocate"); status != cuda::kSuccess) return status;
    if (bytes == 0) return cuda::kInvalidValue;
    std::size_t free = 0, total = 0;
    (void)memory_info(&free, &total);
    if (bytes > free) return cuda::kOutOfMemory;
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0xcd, bytes);
    *address = reinterpret_cast<CudaAddress>(memory);
    const std::lock_guard lock(machine().mutex_);
    machine().allocations_[*address] = {bytes, current.back()};
    return cuda::kSuccess;
  }
  static CudaStatus memory_free(CudaAddress address) {
    {
      const std::lock_guard lock(machine().mutex_);
      if (machine().allocations_.erase(address) == 0) {
        machine().violations_.push_back("memory freed that is not allocated");
        return cuda::kInvalidValue;
      }
    }
    std::free(reinterpret_cast<void*>(address));
    return cuda::kSuccess;
  }
  static CudaStatus memory_info(std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(machine().mutex_);
    std::size_t used = 0;
    for (const auto& [address, allocation] : machine().allocations_) used += allocation.device == current.back() ? allocation.bytes : 0;
    *total = machine().capacity_;
    *free = machine().capacity_ - used;
    return cuda::kSuccess;
  }
  static bool whole(CudaAddress address, std::size_t bytes) {
    const std::lock_guard lock(machine().mutex_);
    bool crosses = false;
    (void)machine().find(address, bytes, &crosses);
    return !crosses;
  }
  static CudaStatus copy(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    if (const auto status = machine().take_failure("copy"); status != cuda::kSuccess) return status;
    if (!whole(to, bytes) || !whole(from, bytes)) return refuse(cuda::kInvalidValue, "a copy beyond an allocation");
    stream->enqueue([=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
    return cuda::kSuccess;
  }
  static CudaStatus set(CudaAddress to, unsigned char value, std::size_t bytes, CudaStream stream) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    if (!whole(to, bytes)) return refuse(cuda::kInvalidValue, "a memset beyond an allocation");
    stream->enqueue([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
    return cuda::kSuccess;
  }
  static CudaStatus pointer_attribute(void* value, int attribute, CudaAddress address) {
    const std::lock_guard lock(machine().mutex_);
    bool crosses = false;
    const auto* const found = machine().find(address, 1, &crosses);
    if (found == nullptr && machine().host_counts_ == 0) return cuda::kInvalidValue;
    *static_cast<int*>(value) = attribute == cuda::kPointerMemoryType ? static_cast<int>(cuda::kMemoryOfDevice)
                                : found != nullptr                    ? found->device
                                                                      : current.back();
    return cuda::kSuccess;
  }

  // ---- other processes, which are threads here ----
  static CudaStatus ipc_memory_handle(CudaIpcHandle* handle, CudaAddress address) {
    const std::lock_guard lock(machine().mutex_);
    if (machine().allocations_.count(address) == 0) return cuda::kInvalidValue;
    *handle = handle_of(reinterpret_cast<void*>(address));
    return cuda::kSuccess;
  }
  static CudaStatus ipc_memory_open(CudaAddress* address, CudaIpcHandle handle, unsigned flags) {
    if (flags != cuda::kIpcLazyPeerAccess) return cuda::kInvalidValue;
    *address = reinterpret_cast<CudaAddress>(exported(handle));
    const std::lock_guard lock(machine().mutex_);
    return machine().allocations_.count(*address) > 0 ? cuda::kSuccess : cuda::kInvalidValue;
  }
  static CudaStatus ipc_memory_close(CudaAddress address) {
    std::unique_lock lock(machine().mutex_);
    ++machine().num_closing_;
    machine().closing_.wait(lock, [] { return !machine().hold_closing_; });
    --machine().num_closing_;
    if (machine().allocations_.count(address) == 0) machine().violations_.push_back("memory freed while another process has it open");
    return cuda::kSuccess;
  }
  static CudaStatus host_register(void* memory, std::size_t bytes, unsigned flags) {
    if (flags != (cuda::kHostPortable | cuda::kHostMapped)) return cuda::kInvalidValue;
    if (const auto status = machine().take_failure("register"); status != cuda::kSuccess) return status;
    const std::lock_guard lock(machine().mutex_);
    return machine().registered_.emplace(memory, bytes).second ? cuda::kSuccess : cuda::kInvalidValue;
  }
  static CudaStatus host_unregister(void* memory) {
    const std::lock_guard lock(machine().mutex_);
    if (machine().registered_.erase(memory) > 0) return cuda::kSuccess;
    machine().violations_.push_back("memory of the host unregistered that is not registered");
    return cuda::kInvalidValue;
  }
  static CudaStatus host_address(CudaAddress* address, void* memory, unsigned) {
    *address = reinterpret_cast<CudaAddress>(memory);
    return FakeDriver::word_at(*address) != nullptr ? cuda::kSuccess : cuda::kInvalidValue;
  }
  static CudaStatus ipc_event_handle(CudaIpcHandle* handle, CudaEvent event) {
    if (!FakeDriver::live(event) || (event->flags & cuda::kEventInterprocess) == 0)
      return refuse(cuda::kInvalidHandle, "an event of one process shared");
    *handle = handle_of(event);
    return cuda::kSuccess;
  }
  static CudaStatus ipc_event_open(CudaEvent* event, CudaIpcHandle handle) {
    auto* const origin = static_cast<CudaEvent>(exported(handle));
    if (!FakeDriver::live(origin)) return cuda::kInvalidHandle;
    *event = new CUevent_st{current.back(), origin->flags, origin->records};
    const std::lock_guard lock(machine().mutex_);
    machine().events_.insert(*event);
    return cuda::kSuccess;
  }

  // ---- kernels ----
  static CudaStatus module_load(CudaModule* module, const void* image) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "a module without a current device");
    if (image == nullptr) return cuda::kInvalidImage;
    if (const auto status = machine().take_failure("module"); status != cuda::kSuccess) return status;
    *module = new CUmod_st{current.back()};
    const std::lock_guard lock(machine().mutex_);
    machine().modules_.insert(*module);
    return cuda::kSuccess;
  }
  static CudaStatus module_unload(CudaModule module) {
    const std::lock_guard lock(machine().mutex_);
    if (machine().modules_.erase(module) == 0) return cuda::kInvalidHandle;
    delete module;
    return cuda::kSuccess;
  }
  static CudaStatus module_function(CudaFunction* function, CudaModule, const char* name) {
    if (current.empty()) return refuse(cuda::kInvalidContext, "a kernel without a current device");
    const std::lock_guard lock(machine().mutex_);
    const auto found = machine().kernels_.find(name);
    if (found == machine().kernels_.end()) return cuda::kNotFound;
    *function = reinterpret_cast<CudaFunction>(&found->second);
    return cuda::kSuccess;
  }
  static CudaStatus launch(CudaFunction function, unsigned grid_x, unsigned, unsigned, unsigned block_x, unsigned, unsigned, unsigned,
                           CudaStream stream, void** arguments, void**) {
    if (const auto status = FakeDriver::check(stream); status != cuda::kSuccess) return status;
    if (const auto status = machine().take_failure("launch"); status != cuda::kSuccess) return status;
    if (grid_x == 0 || block_x == 0 || block_x > 1024) return refuse(cuda::kInvalidValue, "a kernel of no or too many threads");
    const auto& kernel = *reinterpret_cast<const FakeCuda::KernelEntry*>(function);
    // The arguments are copied at the launch, as the driver does.
    auto copies = std::make_shared<std::vector<std::vector<std::max_align_t>>>();
    for (std::size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
      auto& copy = copies->emplace_back(kernel.argument_bytes[i] / sizeof(std::max_align_t) + 1);
      std::memcpy(copy.data(), arguments[i], kernel.argument_bytes[i]);
    }
    stream->enqueue([&kernel, copies, threads = std::size_t{grid_x} * block_x] {
      std::vector<void*> addresses;
      for (auto& copy : *copies) addresses.push_back(copy.data());
      kernel.run(addresses.data(), threads);
    });
    return cuda::kSuccess;
  }
};

namespace {

CudaApi make_table() {
  CudaApi api;
  api.path = "the fake";
  api.init = FakeDriver::init;
  api.driver_version = FakeDriver::driver_version;
  api.error_name = FakeDriver::error_name;
  api.error_string = FakeDriver::error_string;
  api.device_count = FakeDriver::device_count;
  api.device_get = FakeDriver::device_get;
  api.device_name = FakeDriver::device_name;
  api.device_uuid = FakeDriver::device_uuid;
  api.device_attribute = FakeDriver::device_attribute;
  api.context_retain = FakeDriver::context_retain;
  api.context_release = FakeDriver::context_release;
  api.context_push = FakeDriver::context_push;
  api.context_pop = FakeDriver::context_pop;
  api.context_device = FakeDriver::context_device;
  api.stream_create = FakeDriver::stream_create;
  api.stream_destroy = FakeDriver::stream_destroy;
  api.stream_synchronize = FakeDriver::stream_synchronize;
  api.stream_wait_event = FakeDriver::stream_wait_event;
  api.event_create = FakeDriver::event_create;
  api.event_destroy = FakeDriver::event_destroy;
  api.event_record = FakeDriver::event_record;
  api.event_query = FakeDriver::event_query;
  api.event_elapsed = FakeDriver::event_elapsed;
  api.memory_allocate = FakeMemory::memory_allocate;
  api.memory_free = FakeMemory::memory_free;
  api.memory_info = FakeMemory::memory_info;
  api.copy = FakeMemory::copy;
  api.set = FakeMemory::set;
  api.pointer_attribute = FakeMemory::pointer_attribute;
  api.ipc_memory_handle = FakeMemory::ipc_memory_handle;
  api.ipc_memory_open = FakeMemory::ipc_memory_open;
  api.ipc_memory_close = FakeMemory::ipc_memory_close;
  api.host_register = FakeMemory::host_register;
  api.host_unregister = FakeMemory::host_unregister;
  api.host_address = FakeMemory::host_address;
  api.stream_write_value = FakeDriver::stream_write_value;
  api.stream_wait_value = FakeDriver::stream_wait_value;
  api.ipc_event_handle = FakeMemory::ipc_event_handle;
  api.ipc_event_open = FakeMemory::ipc_event_open;
  api.module_load = FakeMemory::module_load;
  api.module_unload = FakeMemory::module_unload;
  api.module_function = FakeMemory::module_function;
  api.launch = FakeMemory::launch;
  return api;
}

}  // namespace

const CudaApi& FakeCuda::api() const {
  static const CudaApi table = make_table();
  return table;
}

}  // namespace shoal::runtime
