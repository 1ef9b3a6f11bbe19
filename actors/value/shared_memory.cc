#include "actors/value/shared_memory.h"

#include "runtime/shm/spill_file.h"

namespace shoal::actors {

namespace {

std::uint64_t next_use() {
  static std::atomic<std::uint64_t> uses = 0;  // counts uses in this process: the counts only give an order
  return ++uses;
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::from_fd(Fd memory, std::size_t bytes) {
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
    std::shared_ptr<const runtime::Mapping> original;  // keeps the memory from being spilled
    runtime::Mapping own;
  };
  SHOAL_TRY(auto original, mapping());
  const std::lock_guard lock(mutex_);
  SHOAL_TRY(auto own, runtime::map(memory_, bytes_, runtime::Access::kCopyOnWrite));
  auto out = std::make_shared<const Copy>(std::move(original), std::move(own));
  return std::shared_ptr<const runtime::Mapping>(out, &out->own);
}

Result<Fd> SharedMemory::descriptor() const {
  const std::lock_guard lock(mutex_);
  return runtime::duplicate(memory_);
}

// Writes the file without the lock, so that other threads can use the value meanwhile. A mapping that they make keeps the memory, and the
// file is dropped. spill_to_file maps the memory anew, since mapping_ may have private writes.
Result<bool> SharedMemory::spill(const std::string& folder, const std::function<bool()>& stop) {
  const auto in_use = [this] { return spilled_ || keeps_mapped_ || mapping_.use_count() > 1; };
  Fd memory;
  {
    const std::lock_guard lock(mutex_);
    if (in_use()) return false;
    SHOAL_TRY(memory, runtime::duplicate(memory_));
  }
  SHOAL_TRY(Fd file, runtime::spill_to_file(memory, bytes_, folder, stop));
  const std::lock_guard lock(mutex_);
  if (in_use()) return false;
  memory_ = std::move(file);
  mapping_.reset();
  spilled_ = true;
  return true;
}

bool SharedMemory::spilled() const {
  const std::lock_guard lock(mutex_);
  return spilled_;
}

void SharedMemory::published_as(const ObjectKey& object) {
  const std::lock_guard lock(mutex_);
  published_ = object;
}

std::optional<ObjectKey> SharedMemory::published() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void SharedMemory::on_gone(std::function<void()> reported) {
  const std::lock_guard lock(mutex_);
  gone_ = std::move(reported);
}

}  // namespace shoal::actors
