#include "actors/value/shared_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace shoal::actors {

namespace {

std::uint64_t next_use() {
  static std::atomic<std::uint64_t> uses = 0;  // of this process: only an order
  return ++uses;
}

Result<Fd> nameless_file(const std::string& folder, std::size_t bytes) {
  std::string name = folder + "/spilled-XXXXXX";
  Fd out(mkostemp(name.data(), O_CLOEXEC));
  if (!out) return fail(from_errno(errno, "no file for an object in " + folder));
  unlink(name.c_str());
  if (const int error = posix_fallocate(out.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    return fail(from_errno(error, "no room for " + std::to_string(bytes) + " bytes of an object in " + folder));
  }
  return out;
}

Result<Fd> for_reading(const Fd& file) {
  Fd out(open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!out) return fail(from_errno(errno, "a file cannot be opened for reading"));
  return out;
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::of(Fd memory, std::size_t bytes) {
  auto out = std::make_shared<SharedMemory>(std::move(memory), bytes);
  SHOAL_OK(out->mapping());
  return out;
}

SharedMemory::~SharedMemory() {
  if (gone_) gone_();
}

Result<std::shared_ptr<const runtime::Mapping>> SharedMemory::mapping() {
  const std::lock_guard lock(mutex_);
  last_used_ = next_use();
  if (!mapping_) {
    SHOAL_TRY(auto mapped, runtime::map(memory_, bytes_, runtime::Access::kCopyOnWrite));
    mapping_ = std::make_shared<const runtime::Mapping>(std::move(mapped));
  }
  return mapping_;
}

Result<std::shared_ptr<const runtime::Mapping>> SharedMemory::copy() {
  struct Copy {
    std::shared_ptr<const runtime::Mapping> of;  // who has it looks at the memory, too
    runtime::Mapping own;
  };
  SHOAL_TRY(auto of, mapping());
  const std::lock_guard lock(mutex_);
  SHOAL_TRY(auto own, runtime::map(memory_, bytes_, runtime::Access::kCopyOnWrite));
  auto out = std::make_shared<const Copy>(std::move(of), std::move(own));
  return std::shared_ptr<const runtime::Mapping>(out, &out->own);
}

Result<Fd> SharedMemory::descriptor() const {
  const std::lock_guard lock(mutex_);
  return runtime::duplicate(memory_);
}

// Written without the lock: who looks at it meanwhile keeps it in memory. From a mapping of its own: in mapping_ somebody may have written,
// where only this process sees it.
Result<bool> SharedMemory::spill(const std::string& folder) {
  const auto stays = [this] { return spilled_ || stays_ || mapping_.use_count() > 1; };
  Fd memory;
  {
    const std::lock_guard lock(mutex_);
    if (stays()) return false;
    SHOAL_TRY(memory, runtime::duplicate(memory_));
  }
  SHOAL_TRY(const Fd file, nameless_file(folder, bytes_));
  {
    SHOAL_TRY(const auto object, runtime::map(memory, bytes_, runtime::Access::kRead));
    SHOAL_OK(runtime::write_at(file, 0, object.span()));
  }
  SHOAL_TRY(Fd reader, for_reading(file));
  const std::lock_guard lock(mutex_);
  if (stays()) return false;
  memory_ = std::move(reader);
  mapping_.reset();
  spilled_ = true;
  return true;
}

bool SharedMemory::spilled() const {
  const std::lock_guard lock(mutex_);
  return spilled_;
}

void SharedMemory::on_gone(std::function<void()> told) {
  const std::lock_guard lock(mutex_);
  gone_ = std::move(told);
}

}  // namespace shoal::actors
