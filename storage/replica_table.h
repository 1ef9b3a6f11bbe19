// Objects of other nodes that are here, or on their way: which processes of this node want each, and which part of it is to be asked for
// next. One transfer serves all who ask; a replica is dropped when no process here has a reference any more. Pure: no memory, no clock.
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
    std::uint64_t first_bytes = 64 << 10;     // asked for with the question how large it is
    std::uint64_t piece_bytes = 1 << 20;      // of what is asked for after that
    std::uint64_t max_under_way = 32u << 20;  // of such pieces, from one home
  };
  ReplicaTable() = default;
  explicit ReplicaTable(Options options) : options_(options) {}

  // Whether that is the first: then somebody is to ask for its first bytes, and tell how large it is.
  bool wanted(Object object, WorkerId by);
  // The numbers of the two transfers of one object, one after the other, differ. None: it is not, or no longer, wanted.
  std::optional<std::uint64_t> transfer(Object object) const;
  // It has so many bytes, the first of which are here.
  void begun(Object object, std::uint64_t bytes, std::uint64_t here, std::vector<Object> contains);
  struct Piece {
    Object object;
    std::uint64_t transfer = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  // Parts that are to be asked for now: from each home, of the transfer that began first. Each comes to arrived, also one of a transfer
  // that was given up.
  std::vector<Piece> next();
  // Whether it is all there.
  bool arrived(const Piece& piece);
  bool complete(Object object) const;
  bool is_wanted(Object object, WorkerId by) const;
  std::vector<Object> contained(Object object) const;

  // What is to be dropped, as nobody wants it any more.
  bool let_go(Object object, WorkerId by);
  std::vector<Object> worker_gone(WorkerId worker);
  std::vector<Object> node_gone(NodeId home);
  std::vector<Object> end_job(JobId job);
  // It failed, or will not be.
  void drop(Object object);
  // The one of this id, whatever its job.
  std::optional<Object> find(ObjectId id) const;

  std::optional<Object> first() const { return replicas_.empty() ? std::nullopt : std::optional(replicas_.begin()->first); }

  std::size_t size() const { return replicas_.size(); }
  std::uint64_t under_way() const;

 private:
  struct Replica {
    std::uint64_t transfer = 0;
    std::set<WorkerId> wanted_by;
    std::optional<std::uint64_t> bytes;  // once that is known
    std::uint64_t asked = 0, here = 0;
    std::vector<Object> contains;
  };
  void forget_if_idle(NodeId home);
  template <class Which>
  std::vector<Object> take(const Which& which);

  const Options options_;
  std::map<Object, Replica> replicas_;
  struct Home {
    std::map<std::uint64_t, Object> begun;  // transfers of which something is to be asked for, in order
    std::uint64_t under_way = 0;
  };
  std::map<NodeId, Home> homes_;
  std::uint64_t next_transfer_ = 1;
};

}  // namespace shoal::storage
