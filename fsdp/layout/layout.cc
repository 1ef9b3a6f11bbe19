#include "fsdp/layout/layout.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 44;
constexpr std::size_t kPage = 4096;

}  // namespace

bool can_be_sharded(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBool:
      return true;
    default:
      return false;
  }
}

Result<DType> parse_dtype(std::string_view name) {
  const auto dtype = find_dtype(name);
  if (dtype && can_be_sharded(*dtype)) return *dtype;
  return fail(invalid_argument(fmt::format("parameters of dtype {} cannot be sharded", name))
                  .with_hint("parameters of floating-point types, integers and bool can"));
}

Rows rows_of(std::int64_t rows, int world_size, Rank rank) {
  const std::int64_t piece = (rows + world_size - 1) / world_size;
  const std::int64_t begin = std::min(rank.value * piece, rows);
  return {begin, std::min(begin + piece, rows)};
}

Piece piece_of(const Placed& p, int shards, int shard) {
  const Rows own = rows_of(p.rows, shards, Rank{shard});
  const auto row = static_cast<std::size_t>(p.rows) * p.inner;
  const auto length = static_cast<std::size_t>(own.count()) * p.inner;
  if (p.outer == 0 || length == 0) return {};
  // The shard covers the dim: all runs are adjacent and become one.
  if (length == row) return {0, p.numel, p.numel, 1};
  return {static_cast<std::size_t>(own.begin) * p.inner, length, row, p.outer};
}

Result<Layout> Layout::make(std::vector<Parameter> parameters) {
  Layout out;
  const auto aligned = [](std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  for (auto& p : parameters) {
    if (p.shape.empty())
      return fail(invalid_argument(fmt::format("parameter {} has no dimension to shard", p.name))
                      .with_hint("make it a 1-D tensor with one element"));
    if (p.dim < 0 || static_cast<std::size_t>(p.dim) >= p.shape.size())
      return fail(invalid_argument(fmt::format("parameter {} has {} dimensions, but no dim {} to shard", p.name, p.shape.size(), p.dim)));
    Placed placed;
    placed.numel = placed.outer = placed.inner = 1;
    for (std::size_t d = 0; d < p.shape.size(); ++d) {
      const auto n = p.shape[d];
      if (n < 0) return fail(invalid_argument(fmt::format("parameter {} has a negative size", p.name)));
      const auto size = static_cast<std::size_t>(n);
      if (n > 0 && placed.numel > kMaxBytes / sizeof(double) / size)
        return fail(invalid_argument(fmt::format("parameter {} is too large", p.name)));
      placed.numel *= size;
      if (static_cast<int>(d) < p.dim) placed.outer *= size;
      if (static_cast<int>(d) > p.dim) placed.inner *= size;
    }
    placed.rows = p.shape[static_cast<std::size_t>(p.dim)];
    placed.parameter = std::move(p);
    placed.in_place = placed.outer <= 1 && placed.compute_dtype() == placed.parameter.dtype && !placed.parameter.external;
    placed.offset_bytes = out.bytes_;
    placed.bytes = placed.parameter.external ? 0 : placed.numel * dtype_bytes(placed.compute_dtype());
    placed.slot_offset_bytes = out.slot_bytes_;
    placed.slot_bytes = placed.numel * dtype_bytes(placed.reduce_dtype());
    out.numel_ += static_cast<std::int64_t>(placed.numel);
    out.bytes_ = aligned(out.bytes_ + placed.bytes);
    out.slot_bytes_ = aligned(out.slot_bytes_ + placed.slot_bytes);
    if (std::max(out.bytes_, out.slot_bytes_) > kMaxBytes) return fail(invalid_argument("a unit is too large"));
    out.placed_.push_back(std::move(placed));
  }
  return out;
}

std::int64_t Layout::owned_rows(int shards, int shard) const {
  std::int64_t out = 0;
  for (const auto& p : placed_) out += rows_of(p.rows, shards, Rank{shard}).count();
  return out;
}

std::size_t Layout::owned_bytes(int shards, int shard) const {
  std::size_t out = 0;
  for (const auto& p : placed_) out += owned_bytes(p, shards, shard);
  return out;
}

namespace {

// A parameter's space in each shard's region behind the wholes. Every region has the space of the first shard, the largest.
std::size_t aside_bytes(const Placed& p, int shards) {
  if (p.in_place || p.parameter.external) return 0;
  return (Layout::owned_bytes(p, shards, 0) + Layout::kAlignment - 1) / Layout::kAlignment * Layout::kAlignment;
}

}  // namespace

std::size_t Layout::replica_bytes(int shards) const {
  std::size_t aside = 0;
  for (const auto& p : placed_) aside += aside_bytes(p, shards);
  return (bytes_ + aside * static_cast<std::size_t>(shards) + kPage - 1) / kPage * kPage;
}

std::size_t Layout::own_offset(std::size_t parameter, int shards, int shard) const {
  const Placed& own = placed_[parameter];
  if (own.in_place) return own.offset_bytes + piece_of(own, shards, shard).begin * dtype_bytes(own.parameter.dtype);
  std::size_t before = 0, all = 0;
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    const std::size_t bytes = aside_bytes(placed_[i], shards);
    if (i < parameter) before += bytes;
    all += bytes;
  }
  return bytes_ + all * static_cast<std::size_t>(shard) + before;
}

std::uint64_t Layout::fingerprint() const {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // the start value of the FNV-1a hash
  const auto mix = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  };
  for (const auto& p : placed_) {
    mix(p.parameter.name);
    mix(dtype_name(p.parameter.dtype));
    mix(dtype_name(p.compute_dtype()));
    mix(dtype_name(p.reduce_dtype()));
    mix(std::to_string(p.parameter.dim) + (p.parameter.external ? "x:" : ":"));
    for (const auto n : p.parameter.shape) mix(std::to_string(n) + ",");
  }
  return hash;
}

}  // namespace shoal::fsdp
