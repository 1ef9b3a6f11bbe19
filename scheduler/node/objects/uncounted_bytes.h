// The bytes of objects that no process counts as its own: replicas, and objects whose makers have ended. The node reports them on the usage
// board, as a member of its own.
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
  static constexpr std::size_t kMember = 0;  // the node's place on the usage board
  using Board = std::function<std::optional<runtime::UsageBoard>()>;

  UncountedBytes(const storage::MemoryTable& memory, Board board) : memory_(memory), board_(std::move(board)) {}

  std::optional<runtime::UsageBoard> board() const { return board_(); }
  // Adds to the bytes of replicas (a negative number subtracts), and writes the sum on the usage board.
  void add(std::int64_t replica_bytes);
  // Writes the present sum on the board, where all processes of the node read it.
  void report();

 private:
  const storage::MemoryTable& memory_;
  const Board board_;
  std::uint64_t replica_bytes_ = 0;
  std::uint64_t reported_filed_ = 0;  // bytes in files that were reported last
};

}  // namespace shoal::scheduler
