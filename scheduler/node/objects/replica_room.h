// Room for replicas within the node's limit on objects: transfers wait for it, in order. A wait ends when replicas are evicted or processes
// free memory. It fails after `patience` without progress.
//
// Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/shm/usage_board.h"
#include "scheduler/node/objects/options.h"
#include "scheduler/node/objects/replica_memory.h"
#include "scheduler/node/objects/spiller.h"
#include "scheduler/node/objects/uncounted_bytes.h"

namespace shoal::scheduler {

class ReplicaRoom {
 public:
  using Object = storage::ReferenceTable::Object;
  struct Events {
    std::function<bool(const Object& object, std::uint64_t transfer)> wanted;  // true while the transfer is under way
    std::function<bool(std::uint64_t bytes)> evict;                            // evicts replicas; true if they had so many bytes
    std::function<void(std::uint64_t bytes)> want_room;                        // asks all processes of this node to free memory
  };
  using Then = std::function<void(Result<void>)>;

  ReplicaRoom(runtime::Clock& clock, UncountedBytes& uncounted, ReplicaMemory& copies, Spiller& spiller, const ObjectOptions& options,
              Events events)
      : clock_(clock), uncounted_(uncounted), copies_(copies), spiller_(spiller), options_(options), events_(std::move(events)) {}

  // Counts `bytes` for the replica and calls `then`, at once or later. Does not call it if the transfer has ended before.
  void take(const Object& object, std::uint64_t transfer, std::uint64_t bytes, Then then);

 private:
  struct Waiting {
    Object object;
    std::uint64_t transfer = 0;
    std::uint64_t bytes = 0;
    Then then;
    runtime::TimePoint since{};
    std::optional<runtime::TimePoint> requested_at{};
    runtime::UsageBoard::Usage before{};
  };
  void check();
  // Returns success if this transfer has room, and ResourceExhausted if it never will. Returns nullopt while it has to wait; processes are
  // then requested to free memory.
  std::optional<Result<void>> decide(Waiting& waiting);

  runtime::Clock& clock_;
  UncountedBytes& uncounted_;
  ReplicaMemory& copies_;
  Spiller& spiller_;
  const ObjectOptions& options_;
  const Events events_;
  std::deque<Waiting> waiting_;
  runtime::Timer looking_;
  runtime::TimePoint checked_at_{};  // time of the last check()
};

}  // namespace shoal::scheduler
