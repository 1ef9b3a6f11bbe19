// A serialized value: arguments of a call, its result, or an object that was put.
//
// A head (for Python: the pickle) and out-of-band buffers. Small ones travel inside the frame; large ones lie in a
// shared memory of their own, which the node owns and which describes itself, so that a descriptor is all a reader
// needs. Immutable once made.
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

// How long each piece is. Most values are of one.
class PieceSizes {
 public:
  PieceSizes() = default;
  // Of so many, which are pushed one after the other.
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
    kError,   // the head is an Error of ours (encode_error): only in objects that were published
  };
  static constexpr std::size_t kMaxInlineBytes = 100 << 10;
  static constexpr std::size_t kAlignment = 64;  // of buffers in a shared memory
  static constexpr std::size_t kMaxBuffers = 1 << 14;

  Value() = default;
  // Copies the pieces: the head first, then the buffers. Beyond kMaxInlineBytes into a shared memory.
  static Result<Value> make(const Pieces& pieces, Kind kind = Kind::kResult, ValueMemory* memory = nullptr) {
    return of(pieces, kind, memory);
  }
  static Result<Value> of(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult, ValueMemory* memory = nullptr);
  // The same, always shared: for objects that the node shall keep. Without `memory` in one that is made for it.
  static Result<Value> make_shared(std::span<const std::span<const std::byte>> pieces, Kind kind = Kind::kResult,
                                   ValueMemory* memory = nullptr);
  // Several values as one: what a call with several results is answered with.
  static Result<Value> make_many(const std::vector<Pieces>& values, ValueMemory* memory = nullptr);
  // From a memory that somebody else made. InvalidArgument when it does not describe a value.
  static Result<Value> from_memory(Fd memory);
  // From the wire: `sizes` are the head's and the buffers'.
  static Result<Value> from_inline(PieceSizes sizes, Bytes data, Kind kind);

  Kind kind() const { return kind_; }
  bool raised() const { return kind_ == Kind::kRaised; }
  bool shared() const { return memory() != nullptr; }
  std::span<const std::uint64_t> sizes() const {
    return more_ && !more_->sizes.empty() ? std::span<const std::uint64_t>(more_->sizes) : std::span(&inline_bytes_, has_one_ ? 1 : 0);
  }
  std::size_t num_pieces() const { return sizes().size(); }
  std::size_t total_bytes() const;
  // Of those, what travels in a frame.
  std::size_t inline_bytes() const { return inline_ ? inline_bytes_ : 0; }
  // The head, then the buffers; valid as long as a copy of this value lives. A shared one stays in memory from now on.
  Pieces pieces() const;
  // The first of them; empty when there is none.
  std::span<const std::byte> head() const;
  // The same as pieces(), for as long as `keep` lives: after that it may be moved to a file again.
  struct Pinned {
    Pieces pieces;
    std::shared_ptr<const void> keep;
    const std::byte* base = nullptr;  // of the memory that they lie in
  };
  Result<Pinned> pin() const;

  // The values that one of make_many consists of. Large ones lie in its memory, which lives as long as any of them. InvalidArgument when it
  // does not consist of `count` values.
  Result<std::vector<Value>> split(std::size_t count) const;

  // The same bytes where the user may write without anybody else's seeing it: pages of a shared value are copied as they are written, a
  // small one is copied at once. For reading only: it has no descriptor to pass on.
  Result<Value> for_user() const;

  // Of a shared value: whether its memory holds nothing else. If not it cannot be passed on by a descriptor (own_memory).
  bool whole() const { return !more_ || more_->start == 0; }
  // Of a shared value: a memory that holds it and nothing else. Of a part it is made at the first call: by `memory`, which may wait for
  // room, or, without, as one that nobody counts. Any thread.
  Result<std::shared_ptr<SharedMemory>> own_memory(ValueMemory* memory = nullptr) const;
  // Of a shared value.
  const std::shared_ptr<SharedMemory>& memory() const { return more_ ? more_->memory : kNoMemory; }
  // Of one that is not.
  std::span<const std::byte> inline_data() const { return {inline_.get(), inline_bytes()}; }
  // What references among its bytes refer to; as long as a copy of this value lives here, so do these objects.
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
  // What few values have.
  struct More {
    std::vector<std::uint64_t> sizes;  // empty: of one small piece
    std::shared_ptr<const Refs> refs;  // null: it contains none
    std::shared_ptr<SharedMemory> memory;
    std::shared_ptr<const runtime::Mapping> copy;  // of for_user: instead of the memory
    std::shared_ptr<Own> own;                      // of a part: what is passed on, once it was
    std::size_t start = 0;                         // of its first piece in the memory of a value of several; 0: the memory is its own
  };
  static const std::vector<ObjectKey> kNoRefs;
  static const std::shared_ptr<SharedMemory> kNoMemory;
  // To be changed: no copy of this value sees it.
  More& more();
  void set_sizes(PieceSizes sizes);

  // A value is moved several times on its way: it is six words, and what few have lies elsewhere.
  std::shared_ptr<const std::byte[]> inline_;  // null: shared, or empty
  std::uint64_t inline_bytes_ = 0;
  std::shared_ptr<More> more_;  // null: it has none; not changed where another value has it, too
  Kind kind_ = Kind::kResult;
  bool has_one_ = false;  // one piece, unless there is more
};

}  // namespace shoal::actors
