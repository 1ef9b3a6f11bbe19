#include "actors/value/value.h"

#include <cstring>
#include <numeric>

#include "runtime/shm/readers.h"

namespace shoal::actors {

namespace {

// The header of a shared memory. Sizes follow, then the pieces, each aligned to kAlignment.
struct MemoryHeader {
  std::uint64_t magic;
  std::uint64_t kind;
  std::uint64_t num_pieces;
};
constexpr std::uint64_t kMagic = 0x31764c414f4853ULL;  // "SHOALv1"

constexpr std::size_t kCopied = 256;  // up to so many received bytes are copied, which costs less than keeping their frame

std::size_t aligned(std::size_t n) { return (n + Value::kAlignment - 1) / Value::kAlignment * Value::kAlignment; }

std::size_t first_piece(std::size_t num_pieces) { return aligned(sizeof(MemoryHeader) + 8 * num_pieces); }

PieceSizes sizes_of(std::span<const std::span<const std::byte>> pieces) {
  PieceSizes out(pieces.size());
  for (const auto& p : pieces) out.push_back(p.size());
  return out;
}

class FreshMemory final : public ValueMemory {
 public:
  Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override {
    SHOAL_TRY(Fd out, runtime::make_memory("shoal:value", bytes));
    for (const auto& part : parts) SHOAL_OK(runtime::write_at(out, part.offset, part.bytes));
    if (bytes > Value::kMaxInlineBytes) return runtime::reader_of(out);  // read-only, like the memories of a SegmentPool
    return out;
  }
};

}  // namespace

static_assert(sizeof(Value) <= 48, "thousands of them are under way: what few have belongs to More");

const std::vector<ObjectKey> Value::kNoRefs;
const std::shared_ptr<SharedMemory> Value::kNoMemory;

Value::More& Value::more() {
  if (!more_) {
    more_ = std::make_shared<More>();
  } else if (more_.use_count() > 1) {
    more_ = std::make_shared<More>(*more_);
  }
  return *more_;
}

void Value::set_sizes(PieceSizes sizes) {
  const std::size_t count = sizes.all().size();
  has_one_ = count == 1;
  if (count > 1 || (count == 1 && shared())) more().sizes = std::move(sizes).list();
}

void Value::refer(std::vector<ObjectKey> objects, std::shared_ptr<const void> hold) {
  if (objects.empty() && refs().empty()) return;
  more().refs = objects.empty() ? nullptr : std::make_shared<const Refs>(Refs{std::move(objects), std::move(hold)});
}

std::size_t Value::total_bytes() const {
  const auto all = sizes();
  return std::accumulate(all.begin(), all.end(), std::size_t{0});
}

Result<Value> Value::from_pieces(std::span<const std::span<const std::byte>> pieces, Kind kind, ValueMemory* memory) {
  std::size_t total = 0;
  for (const auto& p : pieces) total += p.size();
  if (total > kMaxInlineBytes) return make_shared(pieces, kind, memory);
  Value out;
  out.set_sizes(sizes_of(pieces));
  out.kind_ = kind;
  const auto data = std::make_shared_for_overwrite<std::byte[]>(total);
  std::size_t at = 0;
  for (const auto& p : pieces) {
    if (!p.empty()) std::memcpy(data.get() + at, p.data(), p.size());
    at += p.size();
  }
  out.inline_ = data;
  out.inline_bytes_ = total;
  return out;
}

Result<Value> Value::make_shared(std::span<const std::span<const std::byte>> pieces, Kind kind, ValueMemory* memory) {
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
  ValueMemory& from = memory != nullptr ? *memory : fresh;
  SHOAL_TRY(Fd filled, from.fill(total, parts));
  Value out;
  SHOAL_TRY(out.more().memory, SharedMemory::from_fd(std::move(filled), total));
  out.memory()->referred = true;
  from.keeps(out.memory());
  out.set_sizes(sizes_of(pieces));
  out.kind_ = kind;
  return out;
}

Result<Value> Value::make_many(const std::vector<Pieces>& values, ValueMemory* memory) {
  std::vector<std::uint32_t> counts;
  Pieces all(1);
  for (const auto& pieces : values) {
    counts.push_back(static_cast<std::uint32_t>(pieces.size()));
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  if (all.size() > kMaxBuffers) return fail(invalid_argument("the results have more than 16384 pieces"));
  all[0] = std::as_bytes(std::span(counts));
  return make(all, Kind::kResult, memory);
}

Result<std::vector<Value>> Value::split(std::size_t count) const {
  SHOAL_TRY(const auto pinned, pin());
  const Pieces& all = pinned.pieces;
  const auto bad = [] { return fail(invalid_argument("an answer has another number of values than the call expects")); };
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
    const auto bytes = std::accumulate(own.begin(), own.end(), std::size_t{0}, [](std::size_t n, const auto& p) { return n + p.size(); });
    if (shared() && bytes > kMaxInlineBytes) {
      part.more().memory = memory();
      part.more().start = static_cast<std::size_t>(own[0].data() - pinned.base);
      part.more().own = std::make_shared<Own>();
      part.set_sizes(sizes_of(own));
    } else {
      SHOAL_TRY(part, make(own));
    }
    if (more_ && more_->refs) part.more().refs = more_->refs;  // each part gets the references of all parts
    out.push_back(std::move(part));
  }
  if (next != all.size()) return bad();
  return out;
}

Result<std::shared_ptr<SharedMemory>> Value::own_memory(ValueMemory* memory) const {
  if (whole()) return this->memory();
  Own& own = *more_->own;
  {
    const std::lock_guard lock(own.mutex);
    if (own.memory) return own.memory;
  }
  SHOAL_TRY(const auto pinned, pin());
  SHOAL_TRY(const Value copy,
            make_shared(pinned.pieces, kind_, memory));  // without the lock, since waiting for room must not block the loop
  const std::lock_guard lock(own.mutex);
  if (!own.memory) own.memory = copy.memory();
  return own.memory;
}

Result<Value> Value::from_memory(Fd memory) {
  SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(memory));
  Value out;
  SHOAL_TRY(out.more().memory, SharedMemory::from_fd(std::move(memory), bytes));
  SHOAL_TRY(const auto mapping, out.memory()->mapping());
  const auto bad = [] { return fail(invalid_argument("a shared memory has no value's header")); };
  MemoryHeader header{};
  if (bytes < sizeof header) return bad();
  std::memcpy(&header, mapping->data(), sizeof header);
  if (header.magic != kMagic || header.num_pieces == 0 || header.num_pieces > kMaxBuffers || header.kind > 2 ||
      first_piece(header.num_pieces) > bytes) {
    return bad();
  }
  PieceSizes sizes(header.num_pieces);
  std::size_t at = first_piece(header.num_pieces);
  for (std::size_t i = 0; i < header.num_pieces; ++i) {
    std::uint64_t size = 0;
    std::memcpy(&size, mapping->data() + sizeof header + 8 * i, 8);
    if (size > bytes || at + size > bytes) return bad();
    sizes.push_back(size);
    at += aligned(size);
  }
  out.set_sizes(std::move(sizes));
  out.kind_ = static_cast<Kind>(header.kind);
  return out;
}

Result<Value> Value::from_inline(PieceSizes sizes, Bytes data, Kind kind) {
  const auto all = sizes.all();
  std::size_t total = 0;
  for (const auto s : all) {
    if (s > data.size()) return fail(invalid_argument("a value is larger than its bytes"));
    total += s;
  }
  if (all.empty() || all.size() > kMaxBuffers || total != data.size()) return fail(invalid_argument("a value does not fill its bytes"));
  Value out;
  out.set_sizes(std::move(sizes));
  out.inline_bytes_ = data.size();
  out.kind_ = kind;
  if (data.size() <= kCopied) {
    const auto copy = std::make_shared_for_overwrite<std::byte[]>(total);
    if (total > 0) std::memcpy(copy.get(), data.data(), total);
    out.inline_ = copy;
  } else {
    const auto kept = std::make_shared<Bytes>(std::move(data));
    out.inline_ = std::shared_ptr<const std::byte[]>(kept, kept->data());
  }
  return out;
}

Result<Value::Pinned> Value::pin() const {
  Pinned out;
  const std::byte* base = inline_.get();
  out.keep = inline_;
  if (shared()) {
    std::shared_ptr<const runtime::Mapping> mapping = more_->copy;
    if (!mapping) {
      SHOAL_TRY(mapping, memory()->mapping());
    }
    base = mapping->data();
    out.keep = std::move(mapping);
  }
  out.base = base;
  out.pieces.reserve(num_pieces());
  std::size_t at = !whole() ? more_->start : shared() ? first_piece(num_pieces()) : 0;
  for (const auto size : sizes()) {
    out.pieces.emplace_back(base + at, size);
    at += shared() ? aligned(size) : size;
  }
  return out;
}

Value::Pieces Value::pieces() const {
  if (shared()) memory()->keep_mapped();
  auto pinned = pin();
  // pin() fails only if the memory, which is not mapped now, cannot be mapped again. Then all pieces are empty.
  return pinned ? std::move(pinned->pieces) : Pieces(num_pieces());
}

std::span<const std::byte> Value::head() const {
  if (num_pieces() == 0) return {};
  return shared() ? pieces()[0] : std::span(inline_.get(), sizes()[0]);
}

Result<Value> Value::for_user() const {
  Value out = *this;
  if (!shared()) {
    const auto copy = std::make_shared<Bytes>(Bytes::copy_of(inline_data().data(), inline_data().size()));
    out.inline_ = std::shared_ptr<const std::byte[]>(copy, copy->data());
    return out;
  }
  SHOAL_TRY(out.more().copy, memory()->copy());
  return out;
}

}  // namespace shoal::actors
