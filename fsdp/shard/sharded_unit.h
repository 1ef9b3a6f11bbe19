// A unit: parameters that are unsharded together, in one arena that every rank of the host maps.
//
// The sharded parameter (a rank's rows) and the unsharded one are the same bytes. A lease says that this rank may read the unit; on one
// host taking one moves nothing. Main thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fsdp/layout/layout.h"
#include "fsdp/shard/lease_guard.h"
#include "runtime/shm/memory.h"

namespace shoal::fsdp {

class ShardedUnit {
 public:
  struct Options {
    bool lease_guard = false;  // an access without a lease faults, with a name
  };
  static Result<std::unique_ptr<ShardedUnit>> make(std::string name, Layout layout, const Fd& arena, int rank, int world_size,
                                                   Options options);

  const std::string& name() const { return name_; }
  // Its place in the model, known when the model is made: "blocks.0", "" for the root.
  void rename(std::string name);
  const Layout& layout() const { return layout_; }
  int world_size() const { return world_size_; }

  // This rank's rows of a parameter; writable inside a write window.
  std::byte* own_rows(std::size_t parameter) const;
  // The whole parameter, as forward and backward read it.
  std::byte* whole(std::size_t parameter) const;

  bool leased() const { return leased_; }
  void take_lease(std::uint64_t step);
  void drop_lease();

 private:
  ShardedUnit(std::string name, Layout layout, int rank, int world_size)
      : name_(std::move(name)), layout_(std::move(layout)), rank_(rank), world_size_(world_size) {}
  void guard();

  std::string name_;
  const Layout layout_;
  const int rank_;
  const int world_size_;
  runtime::Mapping arena_;    // always writable
  runtime::Mapping guarded_;  // with lease_guard: a second one, readable only while leased
  std::optional<GuardedRange> guard_;
  bool leased_ = false;
};

}  // namespace shoal::fsdp
