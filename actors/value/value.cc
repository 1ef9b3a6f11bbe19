#include "actors/value/value.h"

#include <cstring>
#include <numeric>

namespace shoal::actors {

namespace {

// What a shared memory starts with; sizes follow, then the pieces, each at a multiple of kAlignment.
struct MemoryHeader {
  std::uint64_t magic;
  std::uint64_t kind;
  std::uint64_t num_pieces;
};
constexpr std::uint64_t kMagic = 0x31764c414f4853ULL;  // "SHOALv1"

std::size_t aligned(std::size_t n) { return (n + Value::kAlignment - 1) / Value::kAlignment * Value::kAlignment; }

std::size_t first_piece(std::size_t num_pieces) { return aligned(sizeof(MemoryHeader) + 8 * num_pieces); }

std::vector<std::uint64_t> sizes_of(const Value::Pieces& pieces) {
  std::vector<std::uint64_t> out;
  out.reserve(pieces.size());
  for (const auto& p : pieces) out.push_back(p.size());
  return out;
}

class FreshMemory final : public ValueMemory {
 public:
  Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override {
    SHOAL_TRY(Fd out, runtime::make_memory("shoal:value", bytes));
    for (const auto& part : parts) SHOAL_OK(runtime::write_at(out, part.offset, part.bytes));
    return out;
  }
};

}  // namespace

const Bytes Value::kNoBytes;

std::size_t Value::total_bytes() const { return std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}); }

Result<Value> Value::make(const Pieces& pieces, Kind kind, ValueMemory* memory) {
  std::size_t total = 0;
  for (const auto& p : pieces) total += p.size();
  if (total > kMaxInlineBytes) return make_shared(pieces, kind, memory);
  Value out;
  out.sizes_ = sizes_of(pieces);
  out.kind_ = kind;
  Bytes data(total);
  std::size_t at = 0;
  for (const auto& p : pieces) {
    if (!p.empty()) std::memcpy(data.data() + at, p.data(), p.size());
    at += p.size();
  }
  out.inline_ = std::make_shared<Bytes>(std::move(data));
  return out;
}

Result<Value> Value::make_shared(const Pieces& pieces, Kind kind, ValueMemory* memory) {
  if (pieces.empty() || pieces.size() > kMaxBuffers) return fail(invalid_argument("a value has 1 to 16384 pieces"));
  std::size_t total = first_piece(pieces.size());
  for (const auto& p : pieces) total += aligned(p.size());
  std::size_t at = first_piece(pieces.size());
  std::vector<std::byte> front(at);
  const MemoryHeader header{kMagic, static_cast<std::uint64_t>(kind), pieces.size()};
  std::memcpy(front.data(), &header, sizeof header);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t size = pieces[i].size();
    std::memcpy(front.data() + sizeof header + 8 * i, &size, 8);
  }
  std::vector<runtime::SegmentPool::Part> parts = {{0, front}};
  parts.reserve(1 + pieces.size());
  for (const auto& piece : pieces) {
    parts.push_back({at, piece});
    at += aligned(piece.size());
  }
  FreshMemory fresh;
  auto shared = std::make_shared<Shared>();
  SHOAL_TRY(shared->fd, (memory != nullptr ? *memory : fresh).fill(total, parts));
  SHOAL_TRY(shared->mapping, runtime::map(shared->fd, total, runtime::Access::kCopyOnWrite));
  Value out;
  out.sizes_ = sizes_of(pieces);
  out.kind_ = kind;
  out.memory_ = std::move(shared);
  return out;
}

Result<Value> Value::make_many(const std::vector<Pieces>& values, ValueMemory* memory) {
  std::vector<std::uint32_t> counts;
  Pieces all(1);
  for (const auto& pieces : values) {
    counts.push_back(static_cast<std::uint32_t>(pieces.size()));
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  if (all.size() > kMaxBuffers) return fail(invalid_argument("results of more than 16384 pieces"));
  all[0] = std::as_bytes(std::span(counts));
  return make(all, Kind::kResult, memory);
}

Result<std::vector<Value>> Value::split(std::size_t count) const {
  const Pieces all = pieces();
  const auto bad = [] { return fail(invalid_argument("an answer that does not consist of as many values as were asked for")); };
  if (all.empty() || all[0].size() != count * sizeof(std::uint32_t)) return bad();
  std::vector<Value> out;
  std::size_t next = 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t num_pieces = 0;
    std::memcpy(&num_pieces, all[0].data() + i * sizeof num_pieces, sizeof num_pieces);
    if (num_pieces == 0 || num_pieces > all.size() - next) return bad();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(next);
    const Pieces own(begin, begin + num_pieces);
    next += num_pieces;
    Value part;
    part.sizes_ = sizes_of(own);
    if (shared() && part.total_bytes() > kMaxInlineBytes) {
      part.memory_ = memory_;
      part.start_ = static_cast<std::size_t>(own[0].data() - memory_->mapping.data());
    } else {
      SHOAL_TRY(part, make(own));
    }
    out.push_back(std::move(part));
  }
  if (next != all.size()) return bad();
  return out;
}

Result<Fd> Value::own_memory() const {
  if (whole()) return runtime::duplicate(memory());
  SHOAL_TRY(const Value copy, make_shared(pieces(), kind_));
  return runtime::duplicate(copy.memory());
}

Result<Value> Value::from_memory(Fd memory) {
  SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(memory));
  auto shared = std::make_shared<Shared>();
  SHOAL_TRY(shared->mapping, runtime::map(memory, bytes, runtime::Access::kCopyOnWrite));
  shared->fd = std::move(memory);
  const auto bad = [] { return fail(invalid_argument("a memory that holds no value")); };
  MemoryHeader header{};
  if (bytes < sizeof header) return bad();
  std::memcpy(&header, shared->mapping.data(), sizeof header);
  if (header.magic != kMagic || header.num_pieces == 0 || header.num_pieces > kMaxBuffers || header.kind > 2 ||
      first_piece(header.num_pieces) > bytes) {
    return bad();
  }
  Value out;
  std::size_t at = first_piece(header.num_pieces);
  for (std::size_t i = 0; i < header.num_pieces; ++i) {
    std::uint64_t size = 0;
    std::memcpy(&size, shared->mapping.data() + sizeof header + 8 * i, 8);
    if (size > bytes || at + size > bytes) return bad();
    out.sizes_.push_back(size);
    at += aligned(size);
  }
  out.kind_ = static_cast<Kind>(header.kind);
  out.memory_ = std::move(shared);
  return out;
}

Result<Value> Value::from_inline(std::vector<std::uint64_t> sizes, Bytes data, Kind kind) {
  std::size_t total = 0;
  for (const auto s : sizes) {
    if (s > data.size()) return fail(invalid_argument("a value larger than its bytes"));
    total += s;
  }
  if (sizes.empty() || sizes.size() > kMaxBuffers || total != data.size())
    return fail(invalid_argument("a value that does not fill its bytes"));
  Value out;
  out.sizes_ = std::move(sizes);
  out.inline_ = std::make_shared<Bytes>(std::move(data));
  out.kind_ = kind;
  return out;
}

Value::Pieces Value::pieces() const {
  Pieces out;
  std::size_t at = start_ != 0 ? start_ : shared() ? first_piece(sizes_.size()) : 0;
  const std::byte* const base = shared() ? memory_->mapping.data() : inline_data().data();
  for (const auto size : sizes_) {
    out.emplace_back(base + at, size);
    at += shared() ? aligned(size) : size;
  }
  return out;
}

Result<Value> Value::for_user() const {
  Value out = *this;
  if (!shared()) {
    out.inline_ = std::make_shared<Bytes>(inline_data().clone());
    return out;
  }
  auto memory = std::make_shared<Shared>();
  SHOAL_TRY(memory->mapping, runtime::map(memory_->fd, memory_->mapping.size(), runtime::Access::kCopyOnWrite));
  out.memory_ = std::move(memory);
  return out;
}

std::shared_ptr<const void> Value::keep_alive() const {
  if (shared()) return memory_;
  return inline_;
}

}  // namespace shoal::actors
