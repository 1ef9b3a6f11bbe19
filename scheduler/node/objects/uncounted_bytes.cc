#include "scheduler/node/objects/uncounted_bytes.h"

namespace shoal::scheduler {

void UncountedBytes::add(std::int64_t replica_bytes) {
  replica_bytes_ += static_cast<std::uint64_t>(replica_bytes);
  report();
}

void UncountedBytes::report() {
  auto board = board_();
  if (!board) return;
  board->set_kept(kMember, replica_bytes_ + memory_.orphaned_bytes());
  board->add_spilled(kMember, static_cast<std::int64_t>(memory_.filed_bytes() - reported_filed_));
  reported_filed_ = memory_.filed_bytes();
}

}  // namespace shoal::scheduler
