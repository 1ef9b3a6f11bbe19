#include "actors/api/codec/cbor.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace shoal::actors::api {

namespace {

const char* name_of(const CborHead& h) {
  switch (h.major) {
    case Major::kUnsigned:
    case Major::kNegative:
      return "an integer";
    case Major::kBytes:
      return "bytes";
    case Major::kText:
      return "text";
    case Major::kArray:
      return "an array";
    case Major::kMap:
      return "a map";
    case Major::kTag:
      return "a tag";
    case Major::kOther:
      break;
  }
  if (h.first == kFalse || h.first == kTrue) return "a boolean";
  return h.first == kNull || h.first == kUndefined ? "nothing (null)" : "a number";
}

double from_half(std::uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = static_cast<double>(bits & 1023);
  const double value = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? std::ldexp(fraction, -24)
                                       : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

void CborWriter::grow(std::size_t bytes) {
  const std::size_t capacity = std::max(2 * capacity_, size_ + bytes);
  auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
  std::memcpy(larger.get(), begin(), size_);
  large_ = std::move(larger);
  capacity_ = capacity;
}

bool CborReader::fail(std::string why) {
  if (why_.empty()) why_ = fmt::format("{} (at byte {} of {})", why, at_ - begin_, end_ - begin_);
  return false;
}

bool CborReader::expected(const char* what, const CborHead& found) {
  return fail(fmt::format("{} was expected, there is {}", what, name_of(found)));
}

bool CborReader::next(CborHead& out) {
  if (failed()) return false;
  if (at_ == end_) return fail("it ends too early");
  out.first = static_cast<std::uint8_t>(*at_);
  out.major = static_cast<Major>(out.first >> 5);
  const std::uint8_t low = out.first & 31;
  if (low < 24) {
    out.n = low;
    if (out.major == Major::kOther && (out.first < kFalse)) return fail("a simple value that has no meaning");
    ++at_;
    return true;
  }
  if (low > 27 || out.first == 0xf8) return fail("a kind of item that is not used here");
  const std::size_t bytes = std::size_t{1} << (low - 24);
  if (left() <= bytes) return fail("it ends too early");
  out.n = 0;
  for (std::size_t i = 1; i <= bytes; ++i) out.n = out.n << 8 | static_cast<std::uint8_t>(at_[i]);
  at_ += 1 + bytes;
  return true;
}

bool CborReader::begin(Major major, std::uint64_t& n, const char* what) {
  CborHead h;
  const auto* const from = at_;
  if (!next(h)) return false;
  if (h.major != major) {
    at_ = from;
    return expected(what, h);
  }
  // Each item has at least one byte, and each entry of a map two items: a larger number cannot be true.
  if (h.n > left() || (major == Major::kMap && h.n > left() / 2)) return fail("a length beyond the end");
  n = h.n;
  return true;
}

bool CborReader::run(Major major, std::string_view& out, const char* what) {
  std::uint64_t n = 0;
  if (!begin(major, n, what)) return false;
  out = {reinterpret_cast<const char*>(at_), static_cast<std::size_t>(n)};
  at_ += n;
  return true;
}

bool CborReader::integer(bool& negative, std::uint64_t& n) {
  CborHead h;
  const auto* const from = at_;
  if (!next(h)) return false;
  negative = h.major == Major::kNegative;
  n = h.n;
  if (negative || h.major == Major::kUnsigned) return true;
  at_ = from;
  return expected("an integer", h);
}

bool CborReader::number(double& out) {
  CborHead h;
  const auto* const from = at_;
  if (!next(h)) return false;
  if (h.first == kFloat64) {
    out = std::bit_cast<double>(h.n);
  } else if (h.first == kFloat32) {
    out = std::bit_cast<float>(static_cast<std::uint32_t>(h.n));
  } else if (h.first == kFloat16) {
    out = from_half(h.n);
  } else if (h.major == Major::kUnsigned) {
    out = static_cast<double>(h.n);
  } else if (h.major == Major::kNegative) {
    out = -1 - static_cast<double>(h.n);
  } else {
    at_ = from;
    return expected("a number", h);
  }
  return true;
}

bool CborReader::boolean(bool& out) {
  CborHead h;
  const auto* const from = at_;
  if (!next(h)) return false;
  out = h.first == kTrue;
  if (out || h.first == kFalse) return true;
  at_ = from;
  return expected("a boolean", h);
}

bool CborReader::take_tag(std::uint64_t tag) {
  if (failed() || at_ == end_ || static_cast<Major>(static_cast<std::uint8_t>(*at_) >> 5) != Major::kTag) return false;
  const auto* const from = at_;
  CborHead h;
  if (!next(h)) return false;
  if (h.n == tag) return true;
  at_ = from;
  return false;
}

bool CborReader::skip(std::span<const std::byte>& item) {
  const auto* const from = at_;
  CborHead h;
  if (!next(h)) return false;
  std::span<const std::byte> inner;
  if (h.major == Major::kBytes || h.major == Major::kText) {
    if (h.n > left()) return fail("a length beyond the end");
    at_ += h.n;
  } else if (h.major == Major::kArray || h.major == Major::kMap || h.major == Major::kTag) {
    if (h.major != Major::kTag && h.n > left()) return fail("a length beyond the end");
    const std::uint64_t count = h.major == Major::kTag ? 1 : h.major == Major::kMap ? 2 * h.n : h.n;
    if (!enter()) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!skip(inner)) return false;
    }
    leave();
  }
  item = {from, static_cast<std::size_t>(at_ - from)};
  return true;
}

}  // namespace shoal::actors::api
