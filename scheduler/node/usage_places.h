// The node's UsageBoard and the places of processes on it. The board is made with the first process.
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
  // `own`: the node's place. `limit`: for the objects of all processes in bytes; 0: none, and no board.
  UsagePlaces(std::size_t own, std::uint64_t limit) : own_(static_cast<std::int32_t>(own)), limit_(limit) {}

  std::optional<runtime::UsageBoard> board() const;
  // The board's memory for a process at `place`, or nullopt without a board or when it is full. A place below 0 becomes a free one.
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
