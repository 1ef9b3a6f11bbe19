#include "actors/session/object_store.h"

namespace shoal::actors {

namespace {
constexpr auto kTended = std::chrono::seconds(1);
}

ObjectStore::~ObjectStore() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  keeper_.reset();
}

Result<Fd> ObjectStore::fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) {
  auto out = pool_.fill(bytes, parts);
  if (pool_.num_segments() > 0) {
    const std::lock_guard lock(mutex_);
    if (!keeper_ && !ending_) keeper_ = std::make_unique<runtime::SideThread>([this] { keep(); });
    changed_.notify_all();
  }
  return out;
}

void ObjectStore::keep() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || pool_.num_segments() > 0; });
    changed_.wait_for(lock, kTended, [this] { return ending_; });
    if (ending_) return;
    lock.unlock();
    pool_.tend(std::chrono::steady_clock::now());
    lock.lock();
  }
}

}  // namespace shoal::actors
