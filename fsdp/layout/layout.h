// Where a unit's parameters lie in its arena, and which rows of them a rank owns.
//
// An arena is parameter-major: each parameter lies there whole, at a multiple of 64 bytes, one behind the other. A rank owns of every
// parameter the slices that torch.chunk gives it. Sharded on dim 0, with one dtype for both, they are a sub-range of that region: so the
// sharded and the unsharded parameter are the same bytes (in place), and there is no padding between ranks (PyTorch FSDP2 pads each
// shard; its semantics of ownership are kept).
//
// A parameter that is computed with in another dtype than it is kept in, or that is sharded on another dim, is not in place: each owner
// has its shard in a region of its own behind the wholes, and writes its slices of the whole once per version (ShardedUnit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

// Gradients are of the first four; of the others bytes are moved.
enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16, kUInt8, kInt8, kInt16, kInt32, kInt64, kBool };
inline constexpr int kNumDTypes = 10;
Result<DType> parse_dtype(std::string_view name);  // "float32"; InvalidArgument names those there are
const char* dtype_name(DType dtype);
std::size_t dtype_bytes(DType dtype);

struct Parameter {
  std::string name;                 // fully qualified within the unit
  std::vector<std::int64_t> shape;  // at least one dimension
  DType dtype = DType::kFloat32;    // of the shards
  bool requires_grad = true;
  int dim = 0;                              // which one is sharded
  std::optional<DType> compute_dtype = {};  // of the whole one; as the shards if there is none
  std::optional<DType> reduce_dtype = {};   // in which gradients travel; as the whole one if there is none
  bool external = false;                    // neither the whole nor the shards lie in the arena: only its gradients are the engine's
};

// Ranks in rows: a row is a replica, whose ranks own one shard each.
struct Grid {
  Grid(int world_size, int num_replicas = 1) : world_size(world_size), replicas(num_replicas) {}  // NOLINT: a number of shards is one
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

// torch.chunk(dim=0): equal pieces of ceil(rows / world_size), the last ones smaller or empty.
Rows rows_of(std::int64_t rows, int world_size, Rank rank);

// What of a whole parameter one shard is: runs of neighbouring elements, equally far apart.
struct Piece {
  std::size_t begin = 0;   // the first element
  std::size_t length = 0;  // of a run
  std::size_t stride = 0;  // from one run to the next
  std::size_t runs = 0;
  std::size_t numel() const { return length * runs; }
};

struct Placed {
  Parameter parameter;
  std::size_t offset_bytes = 0;       // in the arena
  std::size_t bytes = 0;              // of the whole parameter there
  std::size_t slot_offset_bytes = 0;  // of its gradient in a slot
  std::size_t slot_bytes = 0;
  std::size_t numel = 0;
  std::size_t outer = 0, inner = 0;  // elements before and behind the sharded dim
  std::int64_t rows = 0;             // of the sharded dim
  bool in_place = true;
  DType compute_dtype() const { return parameter.compute_dtype.value_or(parameter.dtype); }
  DType reduce_dtype() const { return parameter.reduce_dtype.value_or(compute_dtype()); }
};
Piece piece_of(const Placed& p, int shards, int shard);

class Layout {
 public:
  static constexpr std::size_t kAlignment = 64;
  // InvalidArgument names the parameter that has no dimension, a negative size, or too many bytes.
  static Result<Layout> make(std::vector<Parameter> parameters);

  const std::vector<Placed>& placed() const { return placed_; }
  std::size_t bytes() const { return bytes_; }            // of the whole parameters
  std::size_t slot_bytes() const { return slot_bytes_; }  // of their gradients
  std::int64_t numel() const { return numel_; }

  // The bytes of one parameter that a shard has.
  static std::size_t owned_bytes(const Placed& p, int shards, int shard) {
    return piece_of(p, shards, shard).numel() * dtype_bytes(p.parameter.dtype);
  }
  // Of all of them.
  std::int64_t owned_rows(int shards, int shard) const;
  std::size_t owned_bytes(int shards, int shard) const;

  // One arena: each replica has its wholes, then a region for each shard with what is not in place.
  std::size_t arena_bytes(Grid grid) const { return replica_bytes(grid.shards()) * static_cast<std::size_t>(grid.replicas); }
  std::size_t replica_bytes(int shards) const;
  // Where, in its replica's part, a shard's own bytes of a parameter begin.
  std::size_t own_offset(std::size_t parameter, int shards, int shard) const;

  // Names, shapes, dtypes and dims as a number: ranks that built different models find out.
  std::uint64_t fingerprint() const;

 private:
  std::vector<Placed> placed_;
  std::size_t bytes_ = 0, slot_bytes_ = 0;
  std::int64_t numel_ = 0;
};

}  // namespace shoal::fsdp
