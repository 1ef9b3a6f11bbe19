// The part of CBOR (RFC 8949) for arguments and results: a fast writer, and a reader for untrusted bytes.
//
// The reader reads each byte once and never beyond the end. It checks lengths against the remaining bytes before any allocation, and
// reports its first error with the byte's position. Neither throws.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/protocol/cluster/object_key.h"

namespace shoal::actors::api {

inline constexpr int kMaxDepth = 64;

struct Hub;

enum class Major : std::uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kOther };

// Single bytes of the major type kOther, and tags.
inline constexpr std::uint8_t kFalse = 0xf4, kTrue = 0xf5, kNull = 0xf6, kUndefined = 0xf7, kFloat16 = 0xf9, kFloat32 = 0xfa,
                              kFloat64 = 0xfb;
// Shoal's own tag ("SHOA"): the item is the index of a value that the call carries besides its arguments.
inline constexpr std::uint64_t kReferenceTag = 0x53484f41;
// Shoal's own tag: the item is [job, object, home, owner] of a value that is not sent.
inline constexpr std::uint64_t kFutureTag = 0x53484f42;

class CborWriter {
 public:
  CborWriter() = default;
  CborWriter(const CborWriter&) = delete;
  CborWriter& operator=(const CborWriter&) = delete;

  void head(Major major, std::uint64_t n) {
    std::byte* const to = room(9);
    const auto type = static_cast<std::uint8_t>(static_cast<std::uint8_t>(major) << 5);
    if (n < 24) return byte(to, type | n);
    if (n <= 0xff) return sized<std::uint8_t>(to, type | 24, n);
    if (n <= 0xffff) return sized<std::uint16_t>(to, type | 25, n);
    if (n <= 0xffffffff) return sized<std::uint32_t>(to, type | 26, n);
    sized<std::uint64_t>(to, type | 27, n);
  }
  void integer(std::int64_t n) {
    n < 0 ? head(Major::kNegative, ~static_cast<std::uint64_t>(n)) : head(Major::kUnsigned, static_cast<std::uint64_t>(n));
  }
  void number(float x) { sized<std::uint32_t>(room(9), kFloat32, std::bit_cast<std::uint32_t>(x)); }
  void number(double x) { sized<std::uint64_t>(room(9), kFloat64, std::bit_cast<std::uint64_t>(x)); }
  void simple(std::uint8_t which) { byte(room(1), which); }
  void text(std::string_view t) { run(Major::kText, t.data(), t.size()); }
  void bytes(std::span<const std::byte> b) { run(Major::kBytes, b.data(), b.size()); }
  // Appends items that are encoded already.
  void raw(const void* data, std::size_t size) {
    if (size == 0) return;
    std::memcpy(room(size), data, size);
    size_ += size;
  }

  std::span<const std::byte> written() const { return {begin(), size_}; }

  // Records that the written items refer to this object, which `hold` keeps.
  enum class Target { kValue, kActor };
  void refers_to(const ObjectKey& object, std::shared_ptr<const void> hold, Target target = Target::kValue) {
    if (refs_ == nullptr) refs_ = std::make_unique<Refs>();
    refs_->to_values |= target == Target::kValue;
    refs_->objects.push_back(object);
    refs_->holds.push_back(std::move(hold));
  }
  struct Refs {
    std::vector<ObjectKey> objects;
    std::vector<std::shared_ptr<const void>> holds;
    bool to_values = false;  // some references are to values, not to actors
  };
  const Refs* refs() const { return refs_.get(); }  // null: none

 private:
  std::byte* begin() { return large_ ? large_.get() : small_.data(); }
  const std::byte* begin() const { return large_ ? large_.get() : small_.data(); }
  std::byte* room(std::size_t bytes) {
    if (capacity_ - size_ < bytes) grow(bytes);
    return begin() + size_;
  }
  void grow(std::size_t bytes);
  void byte(std::byte* to, std::uint64_t value) {
    *to = static_cast<std::byte>(value);
    ++size_;
  }
  template <class N>
  void sized(std::byte* to, std::uint64_t first, std::uint64_t n) {
    *to = static_cast<std::byte>(first);
    for (std::size_t i = 0; i < sizeof(N); ++i) to[1 + i] = static_cast<std::byte>(n >> 8 * (sizeof(N) - 1 - i));
    size_ += 1 + sizeof(N);
  }
  void run(Major major, const void* data, std::size_t size) {
    head(major, size);
    raw(data, size);
  }

  std::array<std::byte, 512> small_;  // enough for most calls
  std::unique_ptr<std::byte[]> large_;
  std::unique_ptr<Refs> refs_;
  std::size_t size_ = 0, capacity_ = sizeof small_;
};

// The first bytes of an item ("head" in RFC 8949): its type, and its number or length. For kOther, `first` is the byte itself, and `n` has
// the bits of a float.
struct CborHead {
  Major major = Major::kOther;
  std::uint8_t first = 0;
  std::uint64_t n = 0;
};

class CborReader {
 public:
  explicit CborReader(std::span<const std::byte> bytes) : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // All return false on failure, and on every later call.
  bool next(CborHead& out);
  // begin: an array or map of `n` items or pairs, which must be possible in the remaining bytes. run: text or bytes.
  bool begin(Major major, std::uint64_t& n, const char* expected);
  bool run(Major major, std::string_view& out, const char* expected);
  bool integer(bool& negative, std::uint64_t& n);  // negative: the value is -1 - n
  bool number(double& out);                        // reads a float or an integer
  bool boolean(bool& out);
  // True if the next item is the single byte `first`, which is then passed.
  bool take_if(std::uint8_t first) {
    if (failed() || at_ == end_ || static_cast<std::uint8_t>(*at_) != first) return false;
    ++at_;
    return true;
  }
  // Like take_if, for the whole head of a tag.
  bool take_tag(std::uint64_t tag);
  // One whole item of any kind, as its bytes.
  bool skip(std::span<const std::byte>& item);

  // enter() and leave() are called around the items of an array or map. enter() returns false beyond kMaxDepth.
  bool enter() { return ++depth_ <= kMaxDepth || fail("it nests too deep"); }
  void leave() { --depth_; }

  // Records the reason of the first failure. Always returns false.
  bool fail(std::string why);
  bool failed() const { return !why_.empty(); }
  const std::string& why() const { return why_; }
  bool at_end() const { return at_ == end_; }

  Hub* hub = nullptr;  // the process's Hub, for handles and futures; may be null

 private:
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool expected(const char* what, const CborHead& found);

  const std::byte* begin_;
  const std::byte* at_;
  const std::byte* end_;
  int depth_ = 0;
  std::string why_;
};

}  // namespace shoal::actors::api
