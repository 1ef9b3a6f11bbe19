#include "runtime/transport/cuda_ipc/ipc_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "runtime/core/fd.h"

namespace shoal::runtime {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

Result<std::shared_ptr<IpcSegment>> IpcSegment::open(const std::string& name) {
  const auto failed = [&](const char* what) {
    return fail(unavailable(fmt::format("{} of the ranks' devices: {}", what, std::strerror(errno))));
  };
  const Fd memory(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (memory.get() < 0) return failed("opening the shared memory");
  if (ftruncate(memory.get(), sizeof(IpcSegment)) != 0) return failed("making the shared memory");
  void* const address = mmap(nullptr, sizeof(IpcSegment), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return failed("mapping the shared memory");
  return std::shared_ptr<IpcSegment>(static_cast<IpcSegment*>(address), [](IpcSegment* segment) { munmap(segment, sizeof(IpcSegment)); });
}

void IpcSegment::forget(const std::string& name) { (void)shm_unlink(name.c_str()); }

}  // namespace shoal::runtime
