// A serialized value: arguments of a call, its result, or an object passed to put().
//
// It consists of pieces: a head (for Python: the pickle) and buffers (for example, the bytes of arrays). A small value is sent inside a
// frame. A large one lies in a shared memory, whose header describes it, so that a reader needs only the descriptor. Immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "actors/protocol/cluster/object_key.h"
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
  // Reserves place for `count` sizes, which push_back() adds.
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
    return from_pieces(pieces, kind, memory);
  }
  static Result<Value> from_pieces(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult,
                                   ValueMemory* memory = nullptr);
  // Makes a value in shared memory, whatever its size: for objects that the node keeps. `memory`: null makes a new memory.
  static Result<Value> make_shared(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult,
                                   ValueMemory* memory = nullptr);
  // Makes one value of several: the answer of a call with several results.
  static Result<Value> make_many(const std::vector<Pieces>& values, ValueMemory* memory = nullptr);
  // The value in another process's memory. Returns InvalidArgument if the memory does not describe one.
  static Result<Value> from_memory(Fd memory);
  // The value in a frame. `sizes`: those of the head and the buffers.
  static Result<Value> from_inline(PieceSizes sizes, Bytes data, Kind kind);

  Kind kind() const { return kind_; }
  bool raised() const { return kind_ == Kind::kRaised; }
  bool shared() const { return memory() != nullptr; }
  std::span<const std::uint64_t> sizes() const {
    return more_ && !more_->sizes.empty() ? std::span<const std::uint64_t>(more_->sizes) : std::span(&inline_bytes_, has_one_ ? 1 : 0);
  }
  std::size_t num_pieces() const { return sizes().size(); }
  std::size_t total_bytes() const;
  // The number of its bytes inside a frame; 0 if it is shared.
  std::size_t inline_bytes() const { return inline_ ? inline_bytes_ : 0; }
  // The head, then the buffers; valid as long as a copy of this value lives. A shared value is never moved to a file from now on.
  Pieces pieces() const;
  // The first piece; empty when there is none.
  std::span<const std::byte> head() const;
  // The pieces, valid as long as `keep` lives. After its end the memory may be moved to a file again.
  struct Pinned {
    Pieces pieces;
    std::shared_ptr<const void> keep;
    const std::byte* base = nullptr;  // the begin of the memory in which the pieces lie
  };
  Result<Pinned> pin() const;

  // The values of which make_many() made this one. Large ones share its memory, which lives as long as any of them. Returns InvalidArgument
  // if their number is not `count`.
  Result<std::vector<Value>> split(std::size_t count) const;

  // The same value with bytes to which this process may write: copy-on-write pages for a shared value, a copy for a small one. It has no
  // descriptor, so it cannot be sent.
  Result<Value> for_user() const;

  // Returns true if a shared value's memory contains nothing else. A part of a make_many() value cannot be sent as a descriptor (see
  // own_memory).
  bool whole() const { return !more_ || more_->start == 0; }
  // A shared value's own memory. For a part the first call copies it, into `memory`, which may block for room, or into a memory outside
  // all limits. Any thread.
  Result<std::shared_ptr<SharedMemory>> own_memory(ValueMemory* memory = nullptr) const;
  // A shared value's memory; null for an inline value.
  const std::shared_ptr<SharedMemory>& memory() const { return more_ ? more_->memory : kNoMemory; }
  // An inline value's bytes; empty for a shared value.
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
    std::vector<std::uint64_t> sizes;  // empty: the value has one piece, or none (has_one_)
    std::shared_ptr<const Refs> refs;  // null: no references
    std::shared_ptr<SharedMemory> memory;
    std::shared_ptr<const runtime::Mapping> copy;  // the mapping of for_user(), used instead of the memory
    std::shared_ptr<Own> own;                      // a part's copy, once made
    std::size_t start = 0;                         // offset of its first piece in a make_many memory; 0: its own memory
  };
  static const std::vector<ObjectKey> kNoRefs;
  static const std::shared_ptr<SharedMemory> kNoMemory;
  // The rare fields, to be changed: copies of this value keep the fields as they were.
  More& more();
  void set_sizes(PieceSizes sizes);

  // A value is moved several times per call, so it is six words; rare fields are in More.
  std::shared_ptr<const std::byte[]> inline_;  // null: shared, or empty
  std::uint64_t inline_bytes_ = 0;
  std::shared_ptr<More> more_;  // null: no rare fields; copied before a change if shared
  Kind kind_ = Kind::kResult;
  bool has_one_ = false;  // the value has one piece, of inline_bytes_ bytes, unless `more_` has sizes
};

}  // namespace shoal::actors
