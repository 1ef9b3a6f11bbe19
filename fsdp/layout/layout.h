// Where a unit's parameters lie in its arena, and which rows of them a rank owns.
//
// An arena is parameter-major: each parameter lies there whole, at a multiple of 64 bytes, one behind the other. A rank owns of every
// parameter the rows that torch.chunk(dim=0) gives it, a sub-range of that region: so the sharded and the unsharded parameter are the
// same bytes, and there is no padding between ranks (PyTorch FSDP2 pads each shard; its semantics of ownership are kept).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16 };
Result<DType> parse_dtype(std::string_view name);  // "float32"; InvalidArgument names those there are
const char* dtype_name(DType dtype);
std::size_t dtype_bytes(DType dtype);

struct Parameter {
  std::string name;                 // fully qualified within the unit
  std::vector<std::int64_t> shape;  // at least one dimension
  DType dtype = DType::kFloat32;
  bool requires_grad = true;
};

struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

// torch.chunk(dim=0): equal pieces of ceil(rows / world_size), the last ones smaller or empty.
Rows rows_of(std::int64_t rows, int world_size, Rank rank);

struct Placed {
  Parameter parameter;
  std::size_t offset_bytes = 0;  // in the arena
  std::size_t bytes = 0;         // of the whole parameter
  std::size_t row_bytes = 0;
  std::int64_t rows = 0;  // of dim 0
};

class Layout {
 public:
  static constexpr std::size_t kAlignment = 64;
  // InvalidArgument names the parameter that has no dimension, a negative size, or too many bytes.
  static Result<Layout> make(std::vector<Parameter> parameters);

  const std::vector<Placed>& placed() const { return placed_; }
  std::size_t bytes() const { return bytes_; }
  std::int64_t numel() const { return numel_; }
  // The bytes of one parameter that a rank owns.
  std::size_t begin_of(const Placed& p, int world_size, Rank rank) const {
    return p.offset_bytes + static_cast<std::size_t>(rows_of(p.rows, world_size, rank).begin) * p.row_bytes;
  }
  std::size_t owned_bytes(const Placed& p, int world_size, Rank rank) const {
    return static_cast<std::size_t>(rows_of(p.rows, world_size, rank).count()) * p.row_bytes;
  }
  // Of all of them.
  std::int64_t owned_rows(int world_size, Rank rank) const;
  std::size_t owned_bytes(int world_size, Rank rank) const;

  // Names, shapes and dtypes as a number: ranks that built different models find out.
  std::uint64_t fingerprint() const;

 private:
  std::vector<Placed> placed_;
  std::size_t bytes_ = 0;
  std::int64_t numel_ = 0;
};

}  // namespace shoal::fsdp
