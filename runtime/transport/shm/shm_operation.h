// The operations of a ShmCommunicator: state machines over shared words, each of which advances as far as possible and never blocks.
//
// A collective is a stream of rounds (shm_memory.h). In each round every rank puts a chunk of its input into shared memory, and reads its
// share of the other ranks' chunks. Up to two rounds are in progress, so that writing and reading overlap. An all_gather of medium size has
// one round instead, in which each rank copies the others' inputs out of their processes (direct_reads.h). A message between two ranks is a
// stream of pieces in the channel of that pair. One thread at a time advances the operations of a communicator. It notifies the membership
// page after progress.
#pragma once

#include <optional>
#include <vector>

#include "runtime/transport/operation.h"
#include "runtime/transport/shm/direct_reads.h"
#include "runtime/transport/shm/ledger.h"
#include "runtime/transport/shm/shm_memory.h"

namespace shoal::runtime {

class ShmCollective final : public Operation {
 public:
  // `sequence` is the number of the collective on this rank, from 1.
  ShmCollective(ShmMemory memory, Ledger& ledger, DirectReads& direct_reads, int rank, std::uint64_t sequence, CollectiveSpec spec,
                Call call, TimePoint began);

  // Begins the collective with round `first` of the group, and enters it into the ledger.
  void start(std::uint64_t first);
  std::uint64_t end() const { return first_ + rounds_; }  // the round after its last one; valid once complete

  Result<bool> advance() override;
  bool complete() const override { return rounds_ > 0 && put_ == rounds_ && read_ == rounds_ && missing_to_release() < 0; }
  int missing() const override;
  std::string what() const override { return describe(entry_); }

 private:
  enum class Words { kPublished, kConsumed, kReduced };
  // Returns the first rank after this one, in cyclic order, whose counter is below `needed`; -1 if there is none. This rank itself comes
  // last.
  int behind(Words words, std::uint64_t needed) const;
  bool has_put(int rank, std::uint64_t round) const;
  int missing_to_put() const;
  int missing_to_reduce() const;
  int missing_to_read() const;
  int missing_to_release() const;  // a rank that may still read this one's input directly
  bool may_read_directly() const;
  bool two_phases() const;  // true for an all_reduce in which every rank first reduces one part
  std::uint64_t own_rounds() const;
  void count_rounds();
  Result<void> check_entries();
  void put(std::uint64_t k);
  void reduce_part(std::uint64_t k);
  void read(std::uint64_t k);
  Result<bool> read_directly();
  std::size_t sent_to_me(int rank) const;

  const ShmMemory memory_;
  Ledger& ledger_;
  DirectReads& direct_reads_;
  const int rank_, world_size_;
  CollectiveSpec spec_;
  std::vector<std::byte> input_copy_;  // the input, if set_input_apart() has copied it
  Entry entry_;
  // For collectives whose chunks have a part for each rank: size of a part.
  std::size_t part_bytes_;
  // For other collectives: size of a chunk.
  std::size_t round_bytes_;
  // Where each rank's part begins: in the input of a reduce_scatter or all_to_all, in the output of an all_gather.
  std::vector<std::size_t> begins_;
  std::vector<std::size_t> receive_begins_;
  std::uint64_t first_ = 0;
  std::uint64_t rounds_ = 0;  // 0: not known yet
  std::uint64_t put_ = 0, reduced_ = 0, read_ = 0;
  bool direct_ = false;
  bool checked_ = false;
};

class ShmMessage final : public Operation {
 public:
  // A message from rank `from` to rank `to`, one of which is this rank. `data`: this rank's buffer.
  ShmMessage(ShmMemory memory, int rank, int from, int to, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call,
             TimePoint began);

  Result<bool> advance() override;
  bool complete() const override { return next_ == pieces_; }
  int missing() const override { return complete() ? -1 : sends() ? to_ : from_; }
  std::string what() const override;

 private:
  bool sends() const { return rank_ == from_; }
  Result<void> check_head(const ShmMemory::Channel::Head& head) const;

  const ShmMemory memory_;
  const int rank_, from_, to_;
  const std::span<std::byte> data_;
  const DType dtype_;
  const std::uint32_t tag_;
  const std::uint64_t pieces_;
  std::uint64_t next_ = 0;
};

}  // namespace shoal::runtime
