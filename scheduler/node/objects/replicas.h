// Replicas of other nodes' objects, complete or under way. An object is transferred once, for all processes of this node. Its replica is
// dropped with the last reference on this node.
//
// A replica is in ReplicaTable as long as a process of this node wants it, and in the node's MemoryTable once it is complete. Loop thread
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/net/peer.h"
#include "scheduler/node/objects/object_names.h"
#include "scheduler/node/objects/options.h"
#include "scheduler/node/objects/replica_memory.h"
#include "scheduler/node/objects/replica_room.h"
#include "scheduler/node/objects/spiller.h"
#include "scheduler/node/peers/peer_nodes.h"
#include "storage/memory_table.h"
#include "storage/replica_table.h"

namespace shoal::scheduler {

class Replicas {
 public:
  using Object = storage::ReferenceTable::Object;

  // `want_room` asks all processes of this node to free memory.
  Replicas(runtime::Clock& clock, const ObjectNames& names, PeerNodes& peer_nodes, storage::MemoryTable& memory, UncountedBytes& uncounted,
           Spiller& spiller, const ObjectOptions& options, std::function<void(std::uint64_t bytes)> want_room);

  const storage::ReplicaTable& table() const { return table_; }

  // Notes that `worker` wants the object. Returns true for the first such worker: its request then waits in the MemoryTable, and the caller
  // begins the transfer.
  bool want(const Object& object, WorkerId worker) { return table_.wanted(object, worker); }
  void begin(const Object& object, WorkerId owner);
  // Notes a get of the replica, which counts as a use for eviction.
  void used(const Object& object) { copies_.used(object); }
  // Notes that a file has replaced the memory of a complete replica.
  void replaced(const Object& object) { copies_.replaced(object); }
  // Frees replicas that no process reads, least recently used first; a later get transfers them again. Returns true if `bytes` were freed.
  bool evict(std::uint64_t bytes);

  void let_go(const Object& object, WorkerId worker);
  void worker_gone(WorkerId worker);
  void end_job(JobId job);
  void node_gone(NodeId home, const Error& why);
  void drop_all(const Error& why);

 private:
  void begun(const Object& object, Result<runtime::Message> answer);
  Result<void> fill(const Object& object, std::uint64_t bytes, const Bytes& first, std::vector<Object> contains);
  void pull_more();
  void pulled(const storage::ReplicaTable::Piece& piece, Result<runtime::Message> answer);
  void finish(const Object& object, Result<Fd> memory);
  // Fails the gets that wait for the object. A later get begins a new transfer.
  void fail_transfer(const Object& object, const Error& why);
  // Fails the gets that wait for these objects, and drops their memory. They are not in the ReplicaTable any more.
  void release(const std::vector<Object>& objects, const Error& why);

  const ObjectNames& names_;
  PeerNodes& peer_nodes_;
  storage::MemoryTable& memory_;
  const ObjectOptions& options_;
  storage::ReplicaTable table_;
  ReplicaMemory copies_;
  ReplicaRoom room_;
};

}  // namespace shoal::scheduler
