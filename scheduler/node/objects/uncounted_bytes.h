// The bytes of objects that no process counts: replicas, and objects whose makers are gone. The node reports them at its own place of the
// usage board.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/shm/usage_board.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class UncountedBytes {
 public:
  static constexpr std::size_t kMember = 0;  // the node's place on the board
  using Board = std::function<std::optional<runtime::UsageBoard>()>;

  UncountedBytes(const storage::MemoryTable& memory, Board board) : memory_(memory), board_(std::move(board)) {}

  std::optional<runtime::UsageBoard> board() const { return board_(); }
  // Changes the bytes of replicas, and reports.
  void add(std::int64_t replica_bytes);
  void report();

 private:
  const storage::MemoryTable& memory_;
  const Board board_;
  std::uint64_t replica_bytes_ = 0;
  std::uint64_t reported_filed_ = 0;  // reported bytes in files
};

}  // namespace shoal::scheduler
