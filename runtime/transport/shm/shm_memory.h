// The memory that the ranks of one host share for a ShmCommunicator: a membership page, a ledger, counters, chunks and channels.
//
// Each rank writes its own counters and chunks. A round is one chunk of each rank's stream. Round n uses the chunks n % kBuffers: a rank
// writes its part of round n once all ranks have consumed round n - kBuffers. So the memory does not grow with messages.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/shm/membership_page.h"
#include "runtime/transport/shm/ledger.h"

namespace shoal::runtime {

class ShmMemory {
 public:
  static constexpr int kBuffers = 2;
  static constexpr int kMaxRanks = static_cast<int>(MembershipPage::kMaxMembers);
  struct Shape {
    int world_size = 1;
    std::size_t chunk_bytes = 256 << 10;   // at least 64 per rank
    std::size_t channel_bytes = 64 << 10;  // size of a piece of a message between two ranks
  };
  using Word = std::atomic<std::uint64_t>;

  struct RankWords {
    alignas(64) Word published;               // number of rounds put into its chunks
    alignas(64) Word consumed;                // number of rounds fully read
    alignas(64) Word reduced;                 // number of rounds whose part it has reduced in place (all_reduce)
    alignas(64) Word present;                 // 1 once the rank has joined
    Word sends[Ledger::kEntries][kMaxRanks];  // all_to_all: bytes for each rank, by sequence number
  };
  // Channel of messages from one rank to another.
  struct Channel {
    struct Head {
      std::uint64_t bytes, tag, dtype;  // properties of the piece's message
    };
    alignas(64) Word sent;      // number of pieces; stored after `heads`
    alignas(64) Word received;  // number of pieces
    Head heads[kBuffers];
  };

  static std::size_t bytes(const Shape& shape) {
    return at_chunks(shape) + kBuffers * num(shape) * (shape.chunk_bytes + num(shape) * shape.channel_bytes);
  }
  ShmMemory(std::byte* memory, Shape shape) : memory_(memory), shape_(shape) {}

  const Shape& shape() const { return shape_; }
  MembershipPage membership_page() const { return MembershipPage(memory_); }
  Word& survivors() const {
    return *reinterpret_cast<Word*>(memory_ + MembershipPage::kBytes);
  }  // a bit per rank, set by the first reform()
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
  static constexpr std::size_t at_ledger() { return MembershipPage::kBytes + 64; }
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
