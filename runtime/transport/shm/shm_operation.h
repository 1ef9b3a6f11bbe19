// One operation of a ShmCommunicator: a state machine over shared words that advances as far as possible and never blocks.
//
// A collective is a stream of rounds (shm_memory.h). In each round every rank puts a chunk of its input, and reads its share of the others'
// chunks. Two rounds are in flight, so that writing and reading overlap. A message between two ranks is a stream of pieces in the channel
// of that pair. One thread at a time advances the operations of a communicator; the caller notifies the page after progress.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "runtime/transport/communicator.h"
#include "runtime/transport/shm/ledger.h"
#include "runtime/transport/shm/shm_memory.h"

namespace shoal::runtime {

class ShmOperation {
 public:
  explicit ShmOperation(Call call, TimePoint began) : call_(std::move(call)), began_(began) {}
  virtual ~ShmOperation() = default;

  // Advances; returns true after progress. Returns InvalidArgument/Diverged if the ranks' calls differ.
  virtual Result<bool> advance() = 0;
  virtual bool complete() const = 0;
  // A rank that it waits for, or -1.
  virtual int missing() const = 0;
  virtual std::string what() const = 0;

  const Call& call() const { return call_; }
  TimePoint began() const { return began_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  void set_done() { done_.store(true, std::memory_order_release); }
  // True once wait() has reported a failure: the caller may have freed the buffers. Guarded by the communicator's mutex.
  bool abandoned() const { return abandoned_; }
  void abandon() { abandoned_ = true; }

 private:
  const Call call_;
  const TimePoint began_;
  std::atomic<bool> done_{false};
  bool abandoned_ = false;
};

class ShmCollective final : public ShmOperation {
 public:
  // `sequence` counts the rank's collectives from 1.
  ShmCollective(ShmMemory memory, Ledger& ledger, int rank, std::uint64_t sequence, CollectiveSpec spec, Call call, TimePoint began);

  // Starts the collective, whose first round is `first`, and enters it into the ledger.
  void start(std::uint64_t first);
  std::uint64_t end() const { return first_ + rounds_; }  // valid once complete

  Result<bool> advance() override;
  bool complete() const override { return rounds_ > 0 && put_ == rounds_ && read_ == rounds_; }
  int missing() const override;
  std::string what() const override { return describe(entry_); }

 private:
  enum class Words { kPublished, kConsumed, kReduced };
  // Returns the first rank after this one, in cyclic order, whose counter is below `needed`, or -1. This rank is the last candidate.
  int behind(Words words, std::uint64_t needed) const;
  bool has_put(int rank, std::uint64_t round) const;
  int missing_to_put() const;
  int missing_to_reduce() const;
  int missing_to_read() const;
  bool two_phases() const;  // all_reduce: every rank reduces one part
  std::uint64_t own_rounds() const;
  void count_rounds();
  Result<void> check_entries();
  void put(std::uint64_t k);
  void reduce_part(std::uint64_t k);
  void read(std::uint64_t k);
  std::size_t part_bytes() const { return part_bytes_; }
  std::size_t sent_to_me(int rank) const;

  const ShmMemory memory_;
  Ledger& ledger_;
  const int rank_, world_size_;
  const CollectiveSpec spec_;
  Entry entry_;
  std::size_t part_bytes_;           // size of a part, in chunks with one part per rank
  std::size_t round_bytes_;          // size of a round, in streams without parts
  std::vector<std::size_t> begins_;  // offsets of the ranks' parts in input (reduce_scatter, all_to_all) or output (all_gather)
  std::vector<std::size_t> receive_begins_;
  std::uint64_t first_ = 0;
  std::uint64_t rounds_ = 0;  // 0: unknown yet
  std::uint64_t put_ = 0, reduced_ = 0, read_ = 0;
  bool checked_ = false;
};

class ShmMessage final : public ShmOperation {
 public:
  // A message from `from` to `to`, one of which is this rank; `data` is this rank's buffer.
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
