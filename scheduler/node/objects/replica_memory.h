// The memory of replicas. Its bytes are counted from the grant of room until no process reads the memory, also after the replica is
// dropped.
//
// The node can write to the memory. Readers get another open file of it, which has a shared lock. So if the node gets an exclusive lock, no
// process reads it. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/loop/clock.h"
#include "scheduler/node/objects/options.h"
#include "scheduler/node/objects/uncounted_bytes.h"
#include "storage/reference_table.h"

namespace shoal::scheduler {

class ReplicaMemory {
 public:
  using Object = storage::ReferenceTable::Object;

  ReplicaMemory(runtime::Clock& clock, UncountedBytes& uncounted, const ObjectOptions& options)
      : clock_(clock), uncounted_(uncounted), options_(options) {}

  // Counts the bytes of a replica whose memory is about to be made.
  void count(const Object& object, std::uint64_t bytes);
  // Makes the memory of a replica, with the bytes `first` at its start.
  Result<void> make(const Object& object, std::uint64_t bytes, std::span<const std::byte> first);
  Result<void> write(const Object& object, std::uint64_t offset, std::span<const std::byte> bytes);
  Result<Fd> for_readers(const Object& object) const;
  // Notes that a process got the replica, for the order of evictable().
  void used(const Object& object);

  // The replicas whose bytes are counted, least recently used first.
  std::vector<Object> evictable() const;
  // Frees the memory of a replica and returns its bytes. Returns nullopt, without effect, while a process reads it.
  std::optional<std::uint64_t> evict(const Object& object);
  // Drops a replica; its memory is given back once no process reads it.
  void drop(const Object& object);
  // Forgets the memory of a replica, which a file has replaced.
  void replaced(const Object& object);
  // Gives back the memory of dropped replicas that no process reads. Checks a limited number in turn, since there may be very many.
  void check_left();

 private:
  struct Copy {
    Fd memory;
    std::uint64_t counted = 0;  // bytes that are counted for this replica
    std::uint64_t last_used = 0;
  };
  bool give_back(const Copy& copy);

  runtime::Clock& clock_;
  UncountedBytes& uncounted_;
  const ObjectOptions& options_;
  std::map<Object, Copy> copies_;
  std::deque<Copy> left_;  // memory of dropped replicas that a process may still read
  std::uint64_t next_use_ = 1;
  runtime::Timer checking_left_;
};

}  // namespace shoal::scheduler
