// The memory that the ranks of one host share for a ShmCommunicator: a membership page, a ledger, counters, chunks and channels.
//
// Each rank writes its own counters and chunks. In a round, each rank handles one chunk of a collective's data. Round n uses the chunks n %
// kBuffers: a rank writes its chunk of round n once all ranks have consumed round n - kBuffers. So the memory does not grow with messages.
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
    std::size_t chunk_bytes = 256 << 10;   // at least 64 for each rank
    std::size_t channel_bytes = 64 << 10;  // bytes of a message that are put into a channel at once
  };
  using Word = std::atomic<std::uint64_t>;

  struct RankWords {
    alignas(64) Word published;  // number of rounds that the rank has put into its chunks
    alignas(64) Word consumed;   // number of rounds that the rank has read wholly
    // Number of rounds of an all_reduce in which the rank has reduced its part in place.
    alignas(64) Word reduced;
    alignas(64) Word present;  // 1 once the rank has joined the group
    // Stored by DirectReads: the rank's pid, its token and the token's address, and whether the rank can read the others' tokens.
    Word pid, token, token_at, direct;
    // The address of the rank's input in a collective that reads directly, by the collective's number.
    Word inputs[Ledger::kEntries];
    // Bytes that the rank sends to each rank in an all_to_all, by the collective's number.
    Word sends[Ledger::kEntries][kMaxRanks];
  };
  // Messages from one rank to another, in pieces.
  struct Channel {
    struct Head {
      std::uint64_t bytes, tag, dtype;  // properties of the message to which a piece belongs
    };
    alignas(64) Word sent;      // number of pieces sent; stored after their `heads`
    alignas(64) Word received;  // number of pieces received
    Head heads[kBuffers];
  };

  static std::size_t bytes(const Shape& shape) {
    return at_chunks(shape) + kBuffers * num(shape) * (shape.chunk_bytes + num(shape) * shape.channel_bytes);
  }
  ShmMemory(std::byte* memory, Shape shape) : memory_(memory), shape_(shape) {}

  const Shape& shape() const { return shape_; }
  MembershipPage membership_page() const { return MembershipPage(memory_); }
  // The ranks that form the next generation, as a bit for each. The first reform() of any rank sets it.
  Word& survivors() const { return *reinterpret_cast<Word*>(memory_ + MembershipPage::kBytes); }
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
