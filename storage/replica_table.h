// Replicas: this node's copies of other nodes' objects, complete or under way. For each, the table has the processes of this node that want
// it, and the pieces to request next. One transfer serves all those processes. A replica is dropped when no process here has a reference.
// Pure: no memory, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/core/id.h"
#include "storage/reference_table.h"

namespace shoal::storage {

class ReplicaTable {
 public:
  using Object = ReferenceTable::Object;
  struct Options {
    std::uint64_t first_bytes = 64 << 10;     // first bytes of the object, requested together with its size
    std::uint64_t piece_bytes = 1 << 20;      // size of later requests
    std::uint64_t max_under_way = 32u << 20;  // bytes of requested pieces per home
  };
  ReplicaTable() = default;
  explicit ReplicaTable(Options options) : options_(options) {}

  // Records that `by` wants the object. Returns true for the first one: then the caller requests its first bytes and calls begun().
  bool wanted(Object object, WorkerId by);
  // The number of the object's transfer, which no earlier transfer had. nullopt: no process wants the object.
  std::optional<std::uint64_t> transfer(Object object) const;
  // The object has `bytes` bytes, of which the first `arrived` have arrived.
  void begun(Object object, std::uint64_t bytes, std::uint64_t arrived, std::vector<Object> contains);
  struct Piece {
    Object object;
    std::uint64_t transfer = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  // The pieces to request now; of each home, those of the oldest transfer first. The caller passes each piece to arrived() once it is here,
  // even if its transfer was given up.
  std::vector<Piece> next();
  // Returns true if the object is complete now.
  bool arrived(const Piece& piece);
  bool complete(Object object) const;
  bool is_wanted(Object object, WorkerId by) const;
  std::vector<Object> contained(Object object) const;

  // Remove replicas that no process wants any more; the caller then drops their memory. let_go() returns true if it removed a replica.
  bool let_go(Object object, WorkerId by);
  std::vector<Object> worker_gone(WorkerId worker);
  std::vector<Object> node_gone(NodeId home);
  std::vector<Object> end_job(JobId job);
  // Removes a replica whose transfer failed or was cancelled.
  void drop(Object object);
  // Finds a replica by id in any job.
  std::optional<Object> find(ObjectId id) const;

  std::optional<Object> first() const { return replicas_.empty() ? std::nullopt : std::optional(replicas_.begin()->first); }

  std::size_t size() const { return replicas_.size(); }
  std::uint64_t under_way() const;

 private:
  struct Replica {
    std::uint64_t transfer = 0;
    std::set<WorkerId> wanted_by;
    std::optional<std::uint64_t> bytes;  // set by begun()
    std::uint64_t requested = 0, arrived = 0;
    std::vector<Object> contains;
  };
  void forget_if_idle(NodeId home);
  template <class Which>
  std::vector<Object> take(const Which& which);

  const Options options_;
  std::map<Object, Replica> replicas_;
  struct Home {
    std::map<std::uint64_t, Object> begun;  // transfers that have pieces to request, by number
    std::uint64_t under_way = 0;
  };
  std::map<NodeId, Home> homes_;
  std::uint64_t next_transfer_ = 1;
};

}  // namespace shoal::storage
