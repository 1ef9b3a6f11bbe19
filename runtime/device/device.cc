#include "runtime/device/device.h"

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

CudaAddress address_of(const void* data) { return reinterpret_cast<CudaAddress>(data); }
std::span<std::byte> span_of(CudaAddress address, std::size_t bytes) { return {reinterpret_cast<std::byte*>(address), bytes}; }

}  // namespace

// A handle that cannot be destroyed is not worth an error: the context's end frees it.
void DestroyStream::operator()(const Device& device, CudaStream stream) const { (void)device.api().stream_destroy(stream); }
void DestroyEvent::operator()(const Device& device, CudaEvent event) const { (void)device.api().event_destroy(event); }
void UnloadModule::operator()(const Device& device, CudaModule module) const {
  const Device::Current current(device);
  (void)device.api().module_unload(module);
}
void FreeMemory::operator()(const Device& device, std::span<std::byte> memory) const {
  const Device::Current current(device);
  if (!memory.empty()) (void)device.api().memory_free(address_of(memory.data()));
}
void CloseMemory::operator()(const Device& device, std::span<std::byte> memory) const {
  const Device::Current current(device);
  (void)device.api().ipc_memory_close(address_of(memory.data()));
}

void UnregisterMemory::operator()(const Device& device, std::span<std::byte> memory) const {
  const Device::Current current(device);
  (void)device.api().host_unregister(memory.data());
}

Result<int> Device::count(const CudaApi& api) {
  int count = 0;
  SHOAL_OK(check_cuda(api, api.device_count(&count), "counting the devices"));
  return count;
}

Result<std::shared_ptr<Device>> Device::open(const CudaApi& api, int ordinal) {
  SHOAL_TRY(const int num_devices, count(api));
  if (ordinal < 0 || ordinal >= num_devices) {
    return fail(invalid_argument(fmt::format("there is no device {}: this process sees {}", ordinal, num_devices))
                    .with_hint("CUDA_VISIBLE_DEVICES decides which devices a process sees"));
  }
  std::shared_ptr<Device> device(new Device(api, ordinal));
  const auto what = fmt::format("opening device {}", ordinal);
  SHOAL_OK(check_cuda(api, api.device_get(&device->device_, ordinal), what));
  char name[128] = {};
  SHOAL_OK(check_cuda(api, api.device_name(name, sizeof name - 1, device->device_), what));
  device->name_ = name;
  SHOAL_OK(check_cuda(api, api.device_uuid(&device->uuid_, device->device_), what));
  SHOAL_OK(check_cuda(api, api.device_attribute(&device->num_multiprocessors_, cuda::kAttributeMultiprocessors, device->device_), what));
  int words = 0;  // stays 0 if an older driver does not know the attribute
  const bool known = api.device_attribute(&words, cuda::kAttributeStreamMemory64, device->device_) == cuda::kSuccess;
  device->orders_by_words_ = known && words != 0 && api.stream_wait_value != nullptr && api.stream_write_value != nullptr;
  CudaContext context = nullptr;
  SHOAL_OK(check_cuda(api, api.context_retain(&context, device->device_), what));
  device->context_ = context;
  return device;
}

Device::~Device() {
  if (context_ != nullptr) (void)api_.context_release(device_);
}

Result<void> Device::check(CudaStatus status, std::string_view what) const {
  if (status == cuda::kSuccess) return {};
  return fail(from_cuda(api_, status, fmt::format("{} on device {} ({})", what, ordinal_, name_)));
}

// ---- streams and events ----

Result<Stream> Device::make_stream() const {
  const Current current(*this);
  CudaStream stream = nullptr;
  SHOAL_OK(check(api_.stream_create(&stream, cuda::kStreamNonBlocking), "making a stream"));
  return Stream(shared_from_this(), stream);
}

Result<Event> Device::make_event(EventUse use) const {
  const Current current(*this);
  CudaEvent event = nullptr;
  const unsigned flags = use == EventUse::kTiming         ? 0
                         : use == EventUse::kInterprocess ? cuda::kEventDisableTiming | cuda::kEventInterprocess
                                                          : cuda::kEventDisableTiming;
  SHOAL_OK(check(api_.event_create(&event, flags), "making an event"));
  return Event(shared_from_this(), event);
}

Result<void> Device::record(const Event& event, CudaStream stream) const {
  const Current current(*this);
  return check(api_.event_record(event.get(), stream), "recording an event");
}

Result<void> Device::wait(CudaStream stream, const Event& event) const {
  const Current current(*this);
  return check(api_.stream_wait_event(stream, event.get(), 0), "ordering streams");
}

Result<bool> Device::passed(const Event& event) const {
  const Current current(*this);
  const auto status = api_.event_query(event.get());
  if (status == cuda::kNotReady) return false;
  SHOAL_OK(check(status, "work"));
  return true;
}

Result<float> Device::milliseconds(const Event& from, const Event& to) const {
  const Current current(*this);
  float out = 0;
  SHOAL_OK(check(api_.event_elapsed(&out, from.get(), to.get()), "measuring time"));
  return out;
}

Result<void> Device::synchronize(CudaStream stream) const {
  const Current current(*this);
  return check(api_.stream_synchronize(stream), "work");
}

// ---- memory ----

Result<DeviceMemory> Device::allocate(std::size_t bytes) const {
  if (bytes == 0) return DeviceMemory(shared_from_this(), {});
  const Current current(*this);
  CudaAddress address = 0;
  if (const auto status = api_.memory_allocate(&address, bytes); status != cuda::kSuccess) {
    const auto left = room();
    return fail(check(status, fmt::format("allocating {} bytes, with {} free,", bytes, left ? left->free : 0)).error());
  }
  return DeviceMemory(shared_from_this(), span_of(address, bytes));
}

Result<Device::Room> Device::room() const {
  const Current current(*this);
  Room out;
  SHOAL_OK(check(api_.memory_info(&out.free, &out.total), "reading the free memory"));
  return out;
}

Result<void> Device::copy(void* to, const void* from, std::size_t bytes, CudaStream stream) const {
  if (bytes == 0) return {};
  const Current current(*this);
  return check(api_.copy(address_of(to), address_of(from), bytes, stream), fmt::format("copying {} bytes", bytes));
}

Result<void> Device::zero(void* to, std::size_t bytes, CudaStream stream) const {
  if (bytes == 0) return {};
  const Current current(*this);
  return check(api_.set(address_of(to), 0, bytes, stream), fmt::format("zeroing {} bytes", bytes));
}

Result<void> Device::check_memory(std::span<const std::byte> data, std::string_view what) const {
  if (data.empty()) return {};
  const Current current(*this);
  unsigned type = 0;
  int ordinal = -1;
  // The driver knows no address that was not allocated by CUDA, and returns kInvalidValue for it.
  const bool known = api_.pointer_attribute(&type, cuda::kPointerMemoryType, address_of(data.data())) == cuda::kSuccess;
  if (!known || type != cuda::kMemoryOfDevice) {
    return fail(invalid_argument(fmt::format("{} lies in memory of the host, not of device {}", what, ordinal_))
                    .with_hint("copy it to the device first, or use a transport for memory of the host"));
  }
  SHOAL_OK(check(api_.pointer_attribute(&ordinal, cuda::kPointerDevice, address_of(data.data())), "looking up an address"));
  if (ordinal == ordinal_) return {};
  return fail(invalid_argument(fmt::format("{} lies on device {}, the group's device is {}", what, ordinal, ordinal_))
                  .with_hint("each rank passes memory of its own device"));
}

// ---- other processes ----

Result<CudaIpcHandle> Device::share(const DeviceMemory& memory) const {
  const Current current(*this);
  CudaIpcHandle handle;
  SHOAL_OK(check(api_.ipc_memory_handle(&handle, address_of(memory.get().data())), "sharing memory"));
  return handle;
}

Result<PeerMemory> Device::open_shared(const CudaIpcHandle& handle, std::size_t bytes) const {
  const Current current(*this);
  CudaAddress address = 0;
  SHOAL_OK(check(api_.ipc_memory_open(&address, handle, cuda::kIpcLazyPeerAccess), "opening another process's memory"));
  return PeerMemory(shared_from_this(), span_of(address, bytes));
}

Result<CudaIpcHandle> Device::share(const Event& event) const {
  const Current current(*this);
  CudaIpcHandle handle;
  SHOAL_OK(check(api_.ipc_event_handle(&handle, event.get()), "sharing an event"));
  return handle;
}

Result<Event> Device::open_shared_event(const CudaIpcHandle& handle) const {
  const Current current(*this);
  CudaEvent event = nullptr;
  SHOAL_OK(check(api_.ipc_event_open(&event, handle), "opening another process's event"));
  return Event(shared_from_this(), event);
}

Result<RegisteredMemory> Device::register_memory(std::span<std::byte> memory) const {
  const Current current(*this);
  SHOAL_OK(
      check(api_.host_register(memory.data(), memory.size(), cuda::kHostPortable | cuda::kHostMapped), "registering the host's memory"));
  return RegisteredMemory(shared_from_this(), memory);
}

Result<CudaAddress> Device::registered(const void* memory) const {
  CudaAddress address = 0;
  SHOAL_OK(check(api_.host_address(&address, const_cast<void*>(memory), 0), "looking up the host's memory"));
  return address;
}

Result<void> Device::wait(CudaStream stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) const {
  const Current current(*this);
  SHOAL_TRY(const auto address, registered(&word));
  return check(api_.stream_wait_value(stream, address, value, cuda::kWaitUntilAtLeast), "waiting for a word");
}

Result<void> Device::write(CudaStream stream, std::atomic<std::uint64_t>& word, std::uint64_t value) const {
  const Current current(*this);
  SHOAL_TRY(const auto address, registered(&word));
  return check(api_.stream_write_value(stream, address, value, cuda::kWriteBehindBarrier), "writing a word");
}

// ---- kernels ----

Result<KernelModule> Device::load(const void* image) const {
  const Current current(*this);
  CudaModule module = nullptr;
  SHOAL_OK(check(api_.module_load(&module, image), "loading kernels"));
  return KernelModule(shared_from_this(), module);
}

Result<CudaFunction> Device::find(const KernelModule& module, const char* kernel) const {
  const Current current(*this);
  CudaFunction function = nullptr;
  SHOAL_OK(check(api_.module_function(&function, module.get(), kernel), fmt::format("finding the kernel {}", kernel)));
  return function;
}

Result<void> Device::launch(CudaFunction kernel, Shape shape, CudaStream stream, void** arguments) const {
  const Current current(*this);
  return check(api_.launch(kernel, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream, arguments, nullptr),
               "starting a kernel");
}

}  // namespace shoal::runtime
