// The node's usage board, and which places on it processes have. The board is made for the first process.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "runtime/shm/memory.h"
#include "runtime/shm/usage_board.h"

namespace shoal::scheduler {

class UsagePlaces {
 public:
  // `own`: the node's place on the board. `limit`: bytes for the objects of all processes; 0: no limit, and no board.
  UsagePlaces(std::size_t own, std::uint64_t limit) : own_(static_cast<std::int32_t>(own)), limit_(limit) {}

  std::optional<runtime::UsageBoard> board() const;
  // Gives a process a place on the board: `place`, or a free one if that is negative. Returns the board's memory, or nullopt if the board
  // is full or there is none.
  Result<std::optional<Fd>> share(std::int32_t& place);
  void leave(std::int32_t place);

 private:
  const std::int32_t own_;
  const std::uint64_t limit_;
  Fd memory_;
  std::optional<runtime::Mapping> mapping_;
  std::set<std::int32_t> taken_;
};

}  // namespace shoal::scheduler
