// Says, before the process dies of it, which parameter was read without a lease.
//
// With lease_guard a unit's unsharded parameters lie in a mapping of their own that is forbidden while no lease is held: whoever reads
// them then faults. A signal handler is the process's, so this is the one table of the process that we keep.
#pragma once

#include <cstddef>
#include <string>

namespace shoal::fsdp {

class GuardedRange {
 public:
  // `what` names the unit and the rank. Up to kMaxRanges at once; further ones fault without a name.
  GuardedRange(const std::byte* begin, std::size_t bytes, const std::string& what);
  ~GuardedRange();
  GuardedRange(const GuardedRange&) = delete;
  GuardedRange& operator=(const GuardedRange&) = delete;

  // Shown with the name: where the rank was when it last held the lease.
  void set_step(std::uint64_t step);

  static constexpr std::size_t kMaxRanges = 4096;

 private:
  std::size_t slot_;
};

}  // namespace shoal::fsdp
