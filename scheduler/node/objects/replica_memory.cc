#include "scheduler/node/objects/replica_memory.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>

#include <fmt/format.h>

#include "runtime/shm/memory.h"

namespace shoal::scheduler {

void ReplicaMemory::count(const Object& object, std::uint64_t bytes) {
  copies_[object].counted = bytes;
  uncounted_.add(static_cast<std::int64_t>(bytes));
}

Result<void> ReplicaMemory::make(const Object& object, std::uint64_t bytes, std::span<const std::byte> first) {
  SHOAL_TRY(Fd memory, runtime::make_memory("shoal:value", bytes));
  if (!first.empty()) SHOAL_OK(runtime::write_at(memory, 0, first));
  copies_[object].memory = std::move(memory);
  return {};
}

Result<void> ReplicaMemory::write(const Object& object, std::uint64_t offset, std::span<const std::byte> bytes) {
  return runtime::write_at(copies_.at(object).memory, offset, bytes);
}

Result<Fd> ReplicaMemory::for_readers(const Object& object) const {
  Fd out(open(fmt::format("/proc/self/fd/{}", copies_.at(object).memory.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!out || flock(out.get(), LOCK_SH | LOCK_NB) != 0) return fail(resource_exhausted("the node has no descriptor left for an object"));
  return out;
}

void ReplicaMemory::used(const Object& object) {
  if (const auto copy = copies_.find(object); copy != copies_.end()) copy->second.last_used = next_use_++;
}

std::vector<ReplicaMemory::Object> ReplicaMemory::evictable() const {
  std::vector<std::pair<std::uint64_t, Object>> all;
  for (const auto& [object, copy] : copies_) {
    if (copy.counted > 0) all.emplace_back(copy.last_used, object);
  }
  std::sort(all.begin(), all.end());
  std::vector<Object> out;
  for (const auto& [used, object] : all) out.push_back(object);
  return out;
}

std::optional<std::uint64_t> ReplicaMemory::evict(const Object& object) {
  const auto it = copies_.find(object);
  if (!give_back(it->second)) return std::nullopt;
  return copies_.extract(it).mapped().counted;
}

void ReplicaMemory::drop(const Object& object) {
  auto copy = copies_.extract(object);
  if (copy.empty() || give_back(copy.mapped())) return;
  left_.push_back(std::move(copy.mapped()));
  if (left_.size() == 1) checking_left_ = clock_.after(options_.left_again, [this] { check_left(); });
}

void ReplicaMemory::replaced(const Object& object) {
  if (const auto copy = copies_.extract(object); !copy.empty()) uncounted_.add(-static_cast<std::int64_t>(copy.mapped().counted));
}

void ReplicaMemory::check_left() {
  for (std::size_t n = std::min(left_.size(), options_.left_at_once); n > 0; --n) {
    Copy copy = std::move(left_.front());
    left_.pop_front();
    if (!give_back(copy)) left_.push_back(std::move(copy));
  }
  if (!left_.empty()) checking_left_ = clock_.after(options_.left_again, [this] { check_left(); });
}

// Gives the memory of a replica back, unless a process reads it; then returns false.
bool ReplicaMemory::give_back(const Copy& copy) {
  if (copy.memory && flock(copy.memory.get(), LOCK_EX | LOCK_NB) != 0) return false;
  uncounted_.add(-static_cast<std::int64_t>(copy.counted));
  return true;
}

}  // namespace shoal::scheduler
