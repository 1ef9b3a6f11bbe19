// A serialized value: arguments of a call, its result, or an object passed to put().
//
// It has a head (for Python: the pickle) and out-of-band buffers. Small values are sent inside the frame. A large one lies in its own
// shared memory, which describes itself, so that a reader needs only its descriptor. Immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "actors/cluster/object_key.h"
#include "actors/value/shared_memory.h"
#include "actors/value/value_memory.h"
#include "runtime/core/bytes.h"
#include "runtime/core/fd.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"
#include "runtime/shm/memory.h"

namespace shoal::actors {

// Sizes of the pieces. Most values have one piece.
class PieceSizes {
 public:
  PieceSizes() = default;
  // For `count` sizes, which push_back then adds.
  explicit PieceSizes(std::size_t count) : count_(count) {
    if (count > 1) many_.reserve(count);
  }
  void push_back(std::uint64_t size) {
    if (count_ > 1) {
      many_.push_back(size);
    } else {
      one_ = size;
    }
  }
  std::span<const std::uint64_t> all() const { return count_ > 1 ? std::span<const std::uint64_t>(many_) : std::span(&one_, count_); }
  std::vector<std::uint64_t> list() && {
    if (count_ <= 1) many_.assign(count_, one_);
    return std::move(many_);
  }

 private:
  std::size_t count_ = 0;
  std::uint64_t one_ = 0;
  std::vector<std::uint64_t> many_;
};

class Value {
 public:
  using Pieces = std::vector<std::span<const std::byte>>;
  enum class Kind : std::uint16_t {
    kResult,
    kRaised,  // the head is the exception that user code raised
    kError,   // the head is an Error of the runtime (encode_error); only in published objects
  };
  static constexpr std::size_t kMaxInlineBytes = 100 << 10;
  static constexpr std::size_t kAlignment = 64;  // alignment of buffers in a shared memory
  static constexpr std::size_t kMaxBuffers = 1 << 14;

  Value() = default;
  // Copies the pieces: the head first, then the buffers. Values beyond kMaxInlineBytes go to a shared memory.
  static Result<Value> make(const Pieces& pieces, Kind kind = Kind::kResult, ValueMemory* memory = nullptr) {
    return of(pieces, kind, memory);
  }
  static Result<Value> of(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult, ValueMemory* memory = nullptr);
  // Always shared, for objects that the node keeps. Without `memory` a new one is made.
  static Result<Value> make_shared(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult,
                                   ValueMemory* memory = nullptr);
  // Several values as one: the answer of a call with several results.
  static Result<Value> make_many(const std::vector<Pieces>& values, ValueMemory* memory = nullptr);
  // From another process's memory. InvalidArgument when it does not describe a value.
  static Result<Value> from_memory(Fd memory);
  // From a frame: `sizes` are those of the head and the buffers.
  static Result<Value> from_inline(PieceSizes sizes, Bytes data, Kind kind);

  Kind kind() const { return kind_; }
  bool raised() const { return kind_ == Kind::kRaised; }
  bool shared() const { return memory() != nullptr; }
  std::span<const std::uint64_t> sizes() const {
    return more_ && !more_->sizes.empty() ? std::span<const std::uint64_t>(more_->sizes) : std::span(&inline_bytes_, has_one_ ? 1 : 0);
  }
  std::size_t num_pieces() const { return sizes().size(); }
  std::size_t total_bytes() const;
  // Bytes inside a frame.
  std::size_t inline_bytes() const { return inline_ ? inline_bytes_ : 0; }
  // The head, then the buffers; valid as long as a copy of this value lives. A shared value is not spilled from now on.
  Pieces pieces() const;
  // The first piece; empty when there is none.
  std::span<const std::byte> head() const;
  // The pieces for as long as `keep` lives; after that the memory may be spilled again.
  struct Pinned {
    Pieces pieces;
    std::shared_ptr<const void> keep;
    const std::byte* base = nullptr;  // the memory that they lie in
  };
  Result<Pinned> pin() const;

  // The values inside a make_many value. Large ones share its memory, which lives as long as any of them. InvalidArgument when their
  // number is not `count`.
  Result<std::vector<Value>> split(std::size_t count) const;

  // The same bytes with private writes: copy-on-write pages for a shared value, a copy for a small one. Only for reading in this process,
  // since it has no descriptor to send.
  Result<Value> for_user() const;

  // For a shared value: its memory holds nothing else. Otherwise it cannot be sent as a descriptor (see own_memory).
  bool whole() const { return !more_ || more_->start == 0; }
  // A shared value's own memory. For a part the first call copies it, into `memory`, which may block for room, or into a memory outside
  // all limits. Any thread.
  Result<std::shared_ptr<SharedMemory>> own_memory(ValueMemory* memory = nullptr) const;
  // Null for an inline value.
  const std::shared_ptr<SharedMemory>& memory() const { return more_ ? more_->memory : kNoMemory; }
  // Empty for a shared value.
  std::span<const std::byte> inline_data() const { return {inline_.get(), inline_bytes()}; }
  // The objects that references inside refer to; they live as long as a copy of this value lives in this process.
  const std::vector<ObjectKey>& refs() const { return more_ && more_->refs ? more_->refs->objects : kNoRefs; }
  void refer(std::vector<ObjectKey> objects, std::shared_ptr<const void> hold);

 private:
  struct Refs {
    std::vector<ObjectKey> objects;
    std::shared_ptr<const void> hold;
  };
  struct Own {
    std::mutex mutex;
    std::shared_ptr<SharedMemory> memory;
  };
  // Fields that few values need.
  struct More {
    std::vector<std::uint64_t> sizes;  // empty: one small piece
    std::shared_ptr<const Refs> refs;  // null: no references
    std::shared_ptr<SharedMemory> memory;
    std::shared_ptr<const runtime::Mapping> copy;  // the mapping of for_user(), used instead of the memory
    std::shared_ptr<Own> own;                      // a part's copy, once made
    std::size_t start = 0;                         // offset of its first piece in a make_many memory; 0: its own memory
  };
  static const std::vector<ObjectKey> kNoRefs;
  static const std::shared_ptr<SharedMemory> kNoMemory;
  // For changes, which copies of this value do not see.
  More& more();
  void set_sizes(PieceSizes sizes);

  // A value is moved several times per call, so it is six words; rare fields are in More.
  std::shared_ptr<const std::byte[]> inline_;  // null: shared, or empty
  std::uint64_t inline_bytes_ = 0;
  std::shared_ptr<More> more_;  // null: no rare fields; copied before a change if shared
  Kind kind_ = Kind::kResult;
  bool has_one_ = false;  // one piece, unless `more_` has sizes
};

}  // namespace shoal::actors
