#include "fsdp/layout/layout.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 44;

struct Names {
  DType dtype;
  const char* name;
  std::size_t bytes;
};
constexpr Names kNames[] = {
    {DType::kFloat32, "float32", 4}, {DType::kFloat64, "float64", 8}, {DType::kBFloat16, "bfloat16", 2}, {DType::kFloat16, "float16", 2}};

}  // namespace

Result<DType> parse_dtype(std::string_view name) {
  for (const auto& n : kNames) {
    if (name == n.name) return n.dtype;
  }
  return fail(invalid_argument(fmt::format("parameters of dtype {} cannot be sharded", name))
                  .with_hint("float32, float64, bfloat16 and float16 can"));
}

const char* dtype_name(DType dtype) { return kNames[static_cast<std::size_t>(dtype)].name; }
std::size_t dtype_bytes(DType dtype) { return kNames[static_cast<std::size_t>(dtype)].bytes; }

Rows rows_of(std::int64_t rows, int world_size, Rank rank) {
  const std::int64_t piece = (rows + world_size - 1) / world_size;
  const std::int64_t begin = std::min(rank.value * piece, rows);
  return {begin, std::min(begin + piece, rows)};
}

Result<Layout> Layout::make(std::vector<Parameter> parameters) {
  Layout out;
  for (auto& p : parameters) {
    if (p.shape.empty())
      return fail(invalid_argument(fmt::format("parameter {} has no dimension to shard", p.name))
                      .with_hint("make it a 1-D tensor with one element"));
    std::size_t bytes = dtype_bytes(p.dtype);
    for (const auto n : p.shape) {
      if (n < 0) return fail(invalid_argument(fmt::format("parameter {} has a negative size", p.name)));
      if (n > 0 && bytes > kMaxBytes / static_cast<std::size_t>(n))
        return fail(invalid_argument(fmt::format("parameter {} is too large", p.name)));
      bytes *= static_cast<std::size_t>(n);
    }
    Placed placed;
    placed.offset_bytes = out.bytes_;
    placed.bytes = bytes;
    placed.rows = p.shape[0];
    placed.row_bytes = p.shape[0] > 0 ? bytes / static_cast<std::size_t>(p.shape[0]) : 0;
    out.numel_ += static_cast<std::int64_t>(bytes / dtype_bytes(p.dtype));
    placed.parameter = std::move(p);
    out.bytes_ = (out.bytes_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (out.bytes_ > kMaxBytes) return fail(invalid_argument("a unit is too large"));
    out.placed_.push_back(std::move(placed));
  }
  return out;
}

std::int64_t Layout::owned_rows(int world_size, Rank rank) const {
  std::int64_t out = 0;
  for (const auto& p : placed_) out += rows_of(p.rows, world_size, rank).count();
  return out;
}

std::size_t Layout::owned_bytes(int world_size, Rank rank) const {
  std::size_t out = 0;
  for (const auto& p : placed_) out += owned_bytes(p, world_size, rank);
  return out;
}

std::uint64_t Layout::fingerprint() const {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  const auto mix = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  };
  for (const auto& p : placed_) {
    mix(p.parameter.name);
    mix(dtype_name(p.parameter.dtype));
    for (const auto n : p.parameter.shape) mix(std::to_string(n) + ",");
  }
  return hash;
}

}  // namespace shoal::fsdp
