// Names the unit and the rank whose parameters were accessed without a lease, before the signal ends the process.
//
// With lease_guard a unit's unsharded parameters lie in a mapping that is inaccessible while no lease is held, so an access faults. The
// signal handler and its table of ranges are per process: the engine's only global state.
#pragma once

#include <cstddef>
#include <string>

namespace shoal::fsdp {

class GuardedRange {
 public:
  // `what` names the unit and the rank. At most kMaxRanges exist with a name; an access to further ones faults without a name.
  GuardedRange(const std::byte* begin, std::size_t bytes, const std::string& what);
  ~GuardedRange();
  GuardedRange(const GuardedRange&) = delete;
  GuardedRange& operator=(const GuardedRange&) = delete;

  // Step of the latest lease; printed with the name.
  void set_step(std::uint64_t step);

  static constexpr std::size_t kMaxRanges = 4096;

 private:
  std::size_t slot_;
};

}  // namespace shoal::fsdp
