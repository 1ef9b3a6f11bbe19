#include "fsdp/protocol/version_gate.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace shoal::fsdp {

bool VersionGate::enter() {
  if (phase_ == Phase::kReading) return false;
  SHOAL_CHECK(phase_ == Phase::kWriting, "enter() is called while ranks leave the version");
  ++version_;
  phase_ = Phase::kReading;
  control_.rank(rank_).entered.store(version_, std::memory_order_release);
  return true;
}

bool VersionGate::leave() {
  if (phase_ != Phase::kReading) return false;
  phase_ = Phase::kLeaving;
  control_.rank(rank_).left.store(version_, std::memory_order_release);
  return true;
}

void VersionGate::open() {
  if (phase_ == Phase::kWriting) return;
  SHOAL_CHECK(phase_ == Phase::kLeaving && writable(), "a write window opens while a rank reads");
  phase_ = Phase::kWriting;
}

bool VersionGate::others_left() const {
  for (int r = 0; phase_ == Phase::kReading && r < world_size_; ++r) {
    if (control_.rank(r).left.load(std::memory_order_acquire) >= version_) return true;
  }
  return false;
}

std::uint64_t VersionGate::slowest(Word word) const {
  std::uint64_t out = ~std::uint64_t{0};
  for (int r = 0; r < world_size_; ++r) out = std::min(out, (control_.rank(r).*word).load(std::memory_order_acquire));
  return out;
}

int VersionGate::behind(Word word) const {
  for (int r = 0; r < world_size_; ++r) {
    if ((control_.rank(r).*word).load(std::memory_order_acquire) < version_) return r;
  }
  return -1;
}

}  // namespace shoal::fsdp
