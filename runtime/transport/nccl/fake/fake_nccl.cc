#include "runtime/transport/nccl/fake/fake_nccl.h"

#include <algorithm>

#include <fmt/format.h>

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

void FakeNccl::hang_launches(bool hang) {
  const std::lock_guard lock(mutex_);
  hang_launches_ = hang;
}

void FakeNccl::connect_with_first_calls(bool connect) {
  const std::lock_guard lock(mutex_);
  connects_ = connect;
}

void FakeNccl::block_calls(int device) {
  const std::lock_guard lock(mutex_);
  blocked_device_ = device;
}

void FakeNccl::launch_at_poll(int number) {
  const std::lock_guard lock(mutex_);
  launching_poll_ = number;
}

void FakeNccl::read_settings_as(int version) {
  const std::lock_guard lock(mutex_);
  settings_version_ = version;
}

std::vector<std::string> FakeNccl::take_names() {
  const std::lock_guard lock(mutex_);
  return std::exchange(names_, {});
}

void FakeNccl::read_settings(const NcclConfig& config) {
  // Sizes of ncclConfig_t in NCCL's own headers.
  constexpr std::size_t kBeforeNames = 48;
  constexpr std::pair<int, std::size_t> kSizes[] = {{22800, 80}, {22700, 72}, {22600, 56}, {21800, kBeforeNames}};
  const auto own = std::ranges::find_if(kSizes, [&](const auto& row) { return settings_version_ >= row.first; })->second;
  if (config.size > own || config.version > static_cast<unsigned>(settings_version_)) {
    violations_.push_back(
        fmt::format("{} bytes of settings as of {}, for NCCL {} with {} bytes", config.size, config.version, settings_version_, own));
  } else if (own > kBeforeNames && config.size > kBeforeNames && config.comm_name != nullptr) {
    names_.emplace_back(config.comm_name);
  }
}

void FakeNccl::hold_init(bool hold) {
  {
    const std::lock_guard lock(mutex_);
    hold_init_ = hold;
  }
  init_.notify_all();
}

void FakeNccl::check_order(bool check) {
  const std::lock_guard lock(mutex_);
  check_order_ = check;
}

void FakeNccl::break_device(int device, NcclStatus status) {
  const std::lock_guard lock(mutex_);
  for (auto& [handle, comm] : comms_) {
    if (comm->device == device) comm->state = status;
  }
}

std::vector<FakeNccl::Issue> FakeNccl::take_issues() {
  const std::lock_guard lock(mutex_);
  return std::exchange(issues_, {});
}

std::vector<std::string> FakeNccl::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

std::size_t FakeNccl::num_communicators() const {
  const std::lock_guard lock(mutex_);
  return comms_.size();
}

std::size_t FakeNccl::num_in_progress(int device) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      comms_.begin(), comms_.end(), [&](const auto& comm) { return comm.second->device == device && !comm.second->begun.empty(); }));
}

std::size_t FakeNccl::num_blocked() const {
  const std::lock_guard lock(mutex_);
  return num_blocked_;
}

bool FakeNccl::connects(const FakeComm& comm) const {
  if (hang_launches_) return true;
  if (!connects_ || comm.num_launched > 0) return false;
  return std::count_if(comms_.begin(), comms_.end(), [&](const auto& other) {
           return other.second->clique == comm.clique && other.second->num_issued > 0;
         }) < comm.clique->num_ranks();
}

void FakeNccl::note_issue(FakeComm& comm, const std::set<NcclComm>& group) {
  ++comm.num_issued;
  Issue issue{std::this_thread::get_id(), comm.device, comm.number, comm.num_issued, {}};
  for (const auto& [handle, other] : comms_) {
    if (other.get() == &comm || other->device != comm.device) continue;
    issue.before[other->number] = other->num_issued;
    // The first calls of a communicator connect its ranks. They need the other ranks' calls, so no thread may wait for them.
    const bool first = other->num_launched == 0 && !other->begun.empty() && (connects_ || other->begun.front().message());
    if (other->begun.empty() || first || connects(*other) || group.count(handle) > 0) continue;
    violations_.push_back(fmt::format("calls to communicator {} of device {} before those to communicator {} are on the stream",
                                      comm.number, comm.device, other->number));
  }
  if (!check_order_) return;
  compare_orders(issue);
  issues_.push_back(std::move(issue));
}

void FakeNccl::compare_orders(const Issue& issue) {
  for (const auto& other : issues_) {
    if (other.communicator != issue.communicator || other.number != issue.number || other.device == issue.device) continue;
    for (const auto& [communicator, number] : issue.before) {
      const auto found = other.before.find(communicator);
      if (found == other.before.end() || found->second == number) continue;
      violations_.push_back(
          fmt::format("before issue {} to communicator {}, device {} has issued {} times to communicator {}, device {} {} times",
                      issue.number, issue.communicator, issue.device, number, communicator, other.device, found->second));
    }
  }
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
