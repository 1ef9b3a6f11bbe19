// One operation of a ShmCommunicator: a machine over shared words that goes as far as it can and never waits.
//
// A collective is a stream of rounds (shm_memory.h): in each, every rank puts a chunk of what it brings, and reads what it needs of the
// others' chunks. Two rounds are in flight, so that putting and reading overlap. A message between two ranks is a stream of pieces in a
// channel of that pair. One thread at a time advances the operations of a communicator; the caller rings when something moved.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "runtime/transport/communicator.h"
#include "runtime/transport/ledger.h"
#include "runtime/transport/shm_memory.h"

namespace shoal::runtime {

class ShmOperation {
 public:
  explicit ShmOperation(Call call, TimePoint began) : call_(std::move(call)), began_(began) {}
  virtual ~ShmOperation() = default;

  // Goes on; true when something moved. Errors: the ranks diverge.
  virtual Result<bool> advance() = 0;
  virtual bool complete() const = 0;
  // A rank that it waits for, -1 when it waits for nobody.
  virtual int missing() const = 0;
  virtual std::string what() const = 0;

  const Call& call() const { return call_; }
  TimePoint began() const { return began_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  void set_done() { done_.store(true, std::memory_order_release); }
  // Its failure was told: its memory may be somebody else's now. Guarded by its communicator's mutex.
  bool abandoned() const { return abandoned_; }
  void abandon() { abandoned_ = true; }

 private:
  const Call call_;
  const TimePoint began_;
  std::atomic<bool> done_{false};
  bool abandoned_ = false;
};

// What a collective moves. Spans and counts as in communicator.h.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  std::span<const std::byte> input;
  std::span<std::byte> output;
  std::vector<std::size_t> counts;   // of all_gather and reduce_scatter; what this rank sends in an all_to_all
  std::vector<std::size_t> receive;  // of an all_to_all
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
};

class ShmCollective final : public ShmOperation {
 public:
  // `sequence` counts the rank's collectives from 1.
  ShmCollective(ShmMemory memory, Ledger& ledger, int rank, std::uint64_t sequence, CollectiveSpec spec, Call call, TimePoint began);

  // It is this one's turn: its rounds begin at `first`. The ledger has it from now on.
  void start(std::uint64_t first);
  std::uint64_t end() const { return first_ + rounds_; }  // once complete

  Result<bool> advance() override;
  bool complete() const override { return rounds_ > 0 && put_ == rounds_ && read_ == rounds_; }
  int missing() const override;
  std::string what() const override { return describe(entry_); }

 private:
  enum class Words { kPublished, kConsumed, kReduced };
  // The first rank, after this one, of which a counter is less than `needed`; -1 when none.
  int behind(Words words, std::uint64_t needed) const;
  bool has_put(int rank, std::uint64_t round) const;
  int missing_to_put() const;
  int missing_to_reduce() const;
  int missing_to_read() const;
  bool two_phases() const;  // of an all_reduce
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
  std::size_t part_bytes_;           // of a chunk that is cut into one part per rank
  std::size_t round_bytes_;          // of a stream that is not cut
  std::vector<std::size_t> begins_;  // of each rank's part in input (reduce_scatter, all_to_all) or output (all_gather)
  std::vector<std::size_t> receive_begins_;
  std::uint64_t first_ = 0;
  std::uint64_t rounds_ = 0;  // 0: not known yet
  std::uint64_t put_ = 0, reduced_ = 0, read_ = 0;
  bool checked_ = false;
};

class ShmMessage final : public ShmOperation {
 public:
  // From `from` to `to`, one of whom is this rank, which says where the data is.
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
