// The memory that the ranks of one host share for a ShmCommunicator: a board, a ledger, counters, chunks and channels.
//
// Each rank writes its own counters and its own chunks. Everybody's n-th round (a chunk of each rank's stream) lies in the chunks of
// number n % kBuffers: a rank puts round n there once all have consumed round n - kBuffers. So memory does not grow with messages.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/shm/board.h"
#include "runtime/transport/ledger.h"

namespace shoal::runtime {

class ShmMemory {
 public:
  static constexpr int kBuffers = 2;
  static constexpr int kMaxRanks = static_cast<int>(Board::kMaxMembers);
  struct Shape {
    int world_size = 1;
    std::size_t chunk_bytes = 256 << 10;   // a multiple of 64 per rank
    std::size_t channel_bytes = 64 << 10;  // a piece of a message between two ranks
  };
  using Word = std::atomic<std::uint64_t>;

  struct RankWords {
    alignas(64) Word published;               // rounds that it has put into its chunks
    alignas(64) Word consumed;                // rounds of which it has read all that it needs
    alignas(64) Word reduced;                 // rounds of which it has reduced its part, in place (all_reduce)
    alignas(64) Word present;                 // it is there
    Word sends[Ledger::kEntries][kMaxRanks];  // of an all_to_all, by its sequence: bytes for each rank
  };
  // From one rank to another.
  struct Channel {
    struct Head {
      std::uint64_t bytes, tag, dtype;  // of the message that the piece belongs to
    };
    alignas(64) Word sent;      // pieces; `heads` are written before
    alignas(64) Word received;  // pieces
    Head heads[kBuffers];
  };

  static std::size_t bytes(const Shape& shape) {
    return at_chunks(shape) + kBuffers * num(shape) * (shape.chunk_bytes + num(shape) * shape.channel_bytes);
  }
  ShmMemory(std::byte* memory, Shape shape) : memory_(memory), shape_(shape) {}

  const Shape& shape() const { return shape_; }
  Board board() const { return Board(memory_); }
  Word& survivors() const { return *reinterpret_cast<Word*>(memory_ + Board::kBytes); }  // a bit per rank, once somebody reforms
  std::byte* ledger() const { return memory_ + at_ledger(); }
  RankWords& rank(int r) const { return reinterpret_cast<RankWords*>(memory_ + at_ranks(shape_))[r]; }
  Channel& channel(int from, int to) const { return reinterpret_cast<Channel*>(memory_ + at_channels(shape_))[pair(from, to)]; }
  std::byte* chunk(int r, std::uint64_t round) const {
    return memory_ + at_chunks(shape_) + (static_cast<std::size_t>(r) * kBuffers + round % kBuffers) * shape_.chunk_bytes;
  }
  std::byte* piece(int from, int to, std::uint64_t number) const {
    return memory_ + at_chunks(shape_) + num(shape_) * kBuffers * shape_.chunk_bytes +
           (pair(from, to) * kBuffers + number % kBuffers) * shape_.channel_bytes;
  }

 private:
  static std::size_t num(const Shape& s) { return static_cast<std::size_t>(s.world_size); }
  std::size_t pair(int from, int to) const { return static_cast<std::size_t>(from) * num(shape_) + static_cast<std::size_t>(to); }
  static constexpr std::size_t at_ledger() { return Board::kBytes + 64; }
  static std::size_t at_ranks(const Shape& s) { return at_ledger() + Ledger::bytes(s.world_size); }
  static std::size_t at_channels(const Shape& s) { return at_ranks(s) + sizeof(RankWords) * num(s); }
  static std::size_t at_chunks(const Shape& s) {
    constexpr std::size_t kPage = 4096;
    return (at_channels(s) + sizeof(Channel) * num(s) * num(s) + kPage - 1) / kPage * kPage;
  }

  std::byte* memory_;
  Shape shape_;
};

}  // namespace shoal::runtime
