#include "runtime/transport/nccl/fake/fake_nccl.h"

namespace shoal::runtime {

FakeNccl& FakeNccl::machine() {
  static auto* const machine = new FakeNccl;  // never destroyed, as the library outlives a process's objects
  return *machine;
}

void FakeNccl::fail_next(const std::string& function, NcclStatus status) {
  const std::lock_guard lock(mutex_);
  failures_[function] = status;
}

void FakeNccl::hang_connecting(bool hang) {
  const std::lock_guard lock(mutex_);
  hang_ = hang;
}

void FakeNccl::hang_operations(bool hang) {
  const std::lock_guard lock(mutex_);
  FakeClique::hang = hang;
}

void FakeNccl::break_device(int device, NcclStatus status) {
  const std::lock_guard lock(mutex_);
  for (auto& [handle, comm] : comms_) {
    if (comm->device == device) comm->state = status;
  }
}

std::vector<std::string> FakeNccl::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

std::size_t FakeNccl::num_communicators() const {
  const std::lock_guard lock(mutex_);
  return comms_.size();
}

void FakeNccl::violation(std::string what) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(std::move(what));
}

NcclStatus FakeNccl::refuse(NcclStatus status, std::string what) {
  violation(std::move(what));
  return status;
}

NcclStatus FakeNccl::take_failure(const std::string& function) {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(function);
  if (found == failures_.end()) return nccl::kSuccess;
  const auto status = found->second;
  failures_.erase(found);
  return status;
}

}  // namespace shoal::runtime
