// A replica of a rank's step record in memory of another host, which survives the loss of the rank's host. It holds rows and states, too.
//
// The rank, its owner, sends its rows and states once. Then it sends for each step the update as data, with the reduced gradients. The
// buddy, a rank on the other host, holds the replica and runs the same update on it, with the same bits. A replica is a StepRecord that the
// buddy writes, so a kill of the buddy leaves it readable as well. No part of it lies in an arena.
//
// If the hash of the rows differs from the replica's, because not only the optimizer has written them, the owner sends rows and states
// again with the step.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "fsdp/link/stream.h"
#include "fsdp/protect/protected_update.h"
#include "fsdp/protect/step_record.h"

namespace shoal::fsdp {

// A message of an owner: this header, the numbers of the arrays, then as pieces the items and the contents of those arrays.
struct ReplicaHeader {
  enum class Kind : std::uint32_t { kContents, kStep };  // rows and states after a step, or the update of a step
  Kind kind = Kind::kContents;
  std::uint32_t num_items = 0, num_arrays = 0, reserved = 0;
  std::uint64_t number = 0;  // the message's number, which the buddy's answer repeats
  std::uint64_t step = 0;
};
constexpr std::size_t replica_header_bytes(std::size_t num_arrays) { return sizeof(ReplicaHeader) + num_arrays * sizeof(std::uint32_t); }

// The answer of a buddy.
struct ReplicaAnswer {
  enum class Kind : std::uint32_t {
    kRecorded,  // the replica has recorded the step
    kReady,     // the replica is of this step, and its rows have this hash: it can take the next one
    kRefused,   // the message does not fit the replica
  };
  Kind kind = Kind::kRecorded;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0, step = 0, rows_hash = 0;
};

// The owner's side: what it sends. `record` and `arenas`: its own.
class ReplicaSource {
 public:
  struct Outgoing {
    std::vector<std::byte> header;
    std::vector<OutgoingPiece> pieces;  // refer to this object, to the record and to the arenas
    std::size_t bytes = 0;
  };
  ReplicaSource(StepRecord record, Memories arenas);

  // A hash of the rows and of their copies in another dtype.
  std::uint64_t rows_hash() const;
  Outgoing contents(std::uint64_t number, std::uint64_t step);
  // The message with the recorded update. `with_contents`: with rows and states of the step before. Internal: the update uses arrays that
  // the record does not list.
  Result<Outgoing> step(std::uint64_t number, std::uint64_t step, bool with_contents);

 private:
  Outgoing make(ReplicaHeader header, const std::vector<std::uint32_t>& arrays) const;
  Result<StepRecord::Place> numbered(const StepRecord::Place& place) const;

  StepRecord record_;
  Memories arenas_;
  // By memory and offset of an array that has elements: its number from 1. Both records list the same arrays.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> numbers_;
  std::vector<StepRecord::Item> items_;
};

// The buddy's side: the replica, and what arrives for it.
class Replica {
 public:
  // `spec`: the owner's, with all arrays in the record and without units.
  Replica(std::span<std::byte> memory, const StepRecord::Spec& spec) : record_(StepRecord::make(memory, spec)) {}

  // The memory for a message. DataLoss: it does not fit this replica. A message with any rows or states has all of them.
  Result<std::vector<std::span<std::byte>>> expect(std::span<const std::byte> header);
  // The message has arrived. Errors: as expect().
  Result<ReplicaAnswer> take();
  // True once the recorded step counts, and the replica is still of the step before.
  bool due(std::uint64_t committed) const;
  // Makes the recorded update.
  ReplicaAnswer run(int num_threads);
  // The number of the present message, or of the last one.
  std::uint64_t number() const { return header_.number; }

 private:
  ReplicaAnswer ready() const;
  // The memory of an array by its number from 1, nullptr for 0. DataLoss: the array has not `numel` elements of this type.
  Result<std::byte*> array(const StepRecord::Place& place, std::uint64_t numel, DType dtype) const;

  StepRecord record_;
  bool complete_ = false;  // once all rows and states have arrived
  ReplicaHeader header_;
  std::vector<StepRecord::Item> items_;
};

}  // namespace shoal::fsdp
