// A unit: parameters that are unsharded together, in one arena that every rank of the host maps.
//
// In place, the sharded parameter (a rank's slices) and the unsharded one are the same bytes. Otherwise the owner casts or copies its
// slices to the whole once per version (publish_own). A lease permits this rank to read the unit; on one host it moves no bytes. Main
// thread only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout/layout.h"
#include "fsdp/unit/lease_guard.h"
#include "runtime/shm/memory.h"

namespace shoal::fsdp {

class ShardedUnit {
 public:
  struct Options {
    bool lease_guard = false;  // an access without a lease faults, and a message names the unit
  };
  // `arena` has layout.arena_bytes(grid) bytes. `before`: a unit of this process in the same arena, whose mapping is used again, or null.
  static Result<std::unique_ptr<ShardedUnit>> make(std::string name, Layout layout, const Fd& arena, int rank, Grid grid, Options options,
                                                   const ShardedUnit* before = nullptr);

  const std::string& name() const { return name_; }
  // Sets the unit's path in the model, when the model is made: "blocks.0", "" for the root.
  void rename(std::string name);
  std::span<std::byte> arena() const { return arena_->span(); }
  const runtime::Mapping& memory() const { return *arena_; }
  // The unit's name in messages.
  std::string label() const { return name_.empty() ? "(root)" : name_; }
  const Layout& layout() const { return layout_; }
  Grid grid() const { return grid_; }
  int rank() const { return rank_; }
  // The node's name for the arena, if the unit's maker has set one.
  const std::string& arena_key() const { return arena_key_; }
  void set_arena_key(std::string key) { arena_key_ = std::move(key); }
  // True if no bytes of the arena depend on the mesh: units of one replica on any number of this host's ranks can use it.
  bool fits_any_mesh() const;
  std::size_t own_bytes(std::size_t parameter) const {
    return Layout::owned_bytes(layout_.placed()[parameter], grid_.shards(), grid_.shard_of(rank_));
  }

  // This rank's contiguous shard of a parameter; writable inside a write window. Not for external parameters.
  std::byte* own(std::size_t parameter) const;
  // The whole parameter, as forward and backward read it. Not for external parameters.
  std::byte* whole(std::size_t parameter) const;
  // A replica's whole parameter at an address that is accessible without a lease: for gathers.
  std::byte* whole_of_replica(std::size_t parameter, int replica) const {
    return arena_->data() + layout_.replica_bytes(grid_.shards()) * static_cast<std::size_t>(replica) +
           layout_.placed()[parameter].offset_bytes;
  }
  // Copies this rank's shards into the wholes, before any rank reads the next version.
  void publish_own();

  bool leased() const { return leased_; }
  void take_lease(std::uint64_t step);
  void drop_lease();

 private:
  ShardedUnit(std::string name, Layout layout, int rank, Grid grid);
  void guard();

  std::string name_, arena_key_;
  const Layout layout_;
  const int rank_;
  const Grid grid_;
  std::size_t replica_begin_ = 0;                  // offset of this rank's replica in the arena
  std::vector<std::size_t> own_begins_;            // offsets of this rank's shards in its replica
  std::shared_ptr<const runtime::Mapping> arena_;  // a mapping that is always readable and writable
  runtime::Mapping guarded_;                       // with lease_guard: a second mapping, readable only while leased
  std::optional<GuardedRange> guard_;
  bool leased_ = false;
};

using Units = std::vector<std::shared_ptr<ShardedUnit>>;  // the units of one model, on one rank

}  // namespace shoal::fsdp
