// Places a unit's parameters in its arena, and assigns their rows to ranks.
//
// An arena is parameter-major: each parameter lies there whole, at a multiple of 64 bytes, one after the other. A rank owns the slices of
// every parameter that torch.chunk gives it. Sharded on dim 0, with one dtype, they are a sub-range of the whole parameter. Sharded and
// unsharded parameter are then the same bytes (in place), without padding between ranks. PyTorch FSDP2 pads each shard; its ownership of
// rows is the same.
//
// A parameter with a compute dtype other than its own, or sharded on another dim, is not in place. Its shards lie in regions behind the
// wholes, and each owner writes its slices of the whole once per version (ShardedUnit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/dtype.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

// True if a parameter may have this dtype. Only floating-point parameters have gradients; the engine moves the bytes of all others.
bool can_be_sharded(DType dtype);
Result<DType> parse_dtype(std::string_view name);  // torch's name; InvalidArgument if no parameter may have it

struct Parameter {
  std::string name;                 // fully qualified within the unit
  std::vector<std::int64_t> shape;  // at least one dimension
  DType dtype = DType::kFloat32;    // dtype of the shards
  bool requires_grad = true;
  int dim = 0;                              // the dim on which the parameter is sharded
  std::optional<DType> compute_dtype = {};  // dtype of the whole parameter; default: the shards'
  std::optional<DType> reduce_dtype = {};   // dtype in which gradients travel; default: the whole parameter's
  bool external = false;                    // lies outside the arena, whole and shards: the engine handles its gradients only
};

// A grid of ranks: each row is a replica, whose ranks own one shard each.
struct Grid {
  Grid(int world_size, int num_replicas = 1) : world_size(world_size), replicas(num_replicas) {}  // NOLINT: converts from a world size
  int shards() const { return world_size / replicas; }
  int shard_of(int rank) const { return rank % shards(); }
  int replica_of(int rank) const { return rank / shards(); }
  int world_size;
  int replicas;
};

struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

// Like torch.chunk(dim=0): equal pieces of ceil(rows / world_size); the last ones are smaller or empty.
Rows rows_of(std::int64_t rows, int world_size, Rank rank);

// A shard as a part of a whole parameter: runs of adjacent elements at equal distances.
struct Piece {
  std::size_t begin = 0;   // first element
  std::size_t length = 0;  // elements of a run
  std::size_t stride = 0;  // elements from one run to the next
  std::size_t runs = 0;
  std::size_t numel() const { return length * runs; }
};

struct Placed {
  Parameter parameter;
  std::size_t offset_bytes = 0;       // offset of the whole parameter within a replica's part of the arena
  std::size_t bytes = 0;              // size of the whole parameter, in its compute dtype
  std::size_t slot_offset_bytes = 0;  // offset of its gradient within a slot
  std::size_t slot_bytes = 0;
  std::size_t numel = 0;
  std::size_t outer = 0, inner = 0;  // products of the sizes before and behind the sharded dim
  std::int64_t rows = 0;             // size of the sharded dim
  bool in_place = true;
  DType compute_dtype() const { return parameter.compute_dtype.value_or(parameter.dtype); }
  DType reduce_dtype() const { return parameter.reduce_dtype.value_or(compute_dtype()); }
};
Piece piece_of(const Placed& p, int shards, int shard);

class Layout {
 public:
  static constexpr std::size_t kAlignment = 64;
  // Returns InvalidArgument, which names the parameter, for one without dimensions, with a negative size, or with too many bytes.
  static Result<Layout> make(std::vector<Parameter> parameters);

  const std::vector<Placed>& placed() const { return placed_; }
  std::size_t bytes() const { return bytes_; }            // size of the whole parameters
  std::size_t slot_bytes() const { return slot_bytes_; }  // size of the gradients in a slot
  std::int64_t numel() const { return numel_; }

  // The bytes of one parameter's shard.
  static std::size_t owned_bytes(const Placed& p, int shards, int shard) {
    return piece_of(p, shards, shard).numel() * dtype_bytes(p.parameter.dtype);
  }
  // Totals over all parameters.
  std::int64_t owned_rows(int shards, int shard) const;
  std::size_t owned_bytes(int shards, int shard) const;

  // The size of an arena. It holds each replica: its wholes, then a region per shard for parameters that are not in place.
  std::size_t arena_bytes(Grid grid) const { return replica_bytes(grid.shards()) * static_cast<std::size_t>(grid.replicas); }
  std::size_t replica_bytes(int shards) const;
  // The offset of a shard of a parameter within a replica's part of the arena.
  std::size_t own_offset(std::size_t parameter, int shards, int shard) const;

  // Hash of names, shapes, dtypes and dims: it detects ranks with different models.
  std::uint64_t fingerprint() const;

 private:
  std::vector<Placed> placed_;
  std::size_t bytes_ = 0, slot_bytes_ = 0;
  std::int64_t numel_ = 0;
};

}  // namespace shoal::fsdp
