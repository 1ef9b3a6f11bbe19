#include "runtime/shm/usage_board.h"

#include <algorithm>

namespace shoal::runtime {

void UsageBoard::clear(std::size_t member) {
  words_[1 + member].kept = 0;
  words_[1 + member].spilled = 0;
}

UsageBoard::Usage UsageBoard::total() const {
  Usage out;
  const std::size_t members = std::min<std::uint64_t>(words_[0].spilled, kMaxMembers);
  for (std::size_t m = 0; m < members; ++m) {
    out.kept += words_[1 + m].kept;
    out.spilled += words_[1 + m].spilled;
  }
  return out;
}

}  // namespace shoal::runtime
