#include "runtime/wire/codec.h"

#include <algorithm>
#include <cstring>

namespace shoal::runtime {

namespace {
constexpr std::uint32_t kMaxSegments = 32;  // a builder doubles its segments, so that 16 end at 16 MiB
}  // namespace

Bytes encode(capnp::MessageBuilder& message) {
  // The format of messageToFlatArray, without a second copy: number of segments after the first, their sizes, the segments.
  const auto segments = message.getSegmentsForOutput();
  const std::size_t table_bytes = (segments.size() + 2) / 2 * sizeof(capnp::word);
  std::size_t total = table_bytes;
  for (const auto& s : segments) total += s.asBytes().size();
  Bytes out(total);
  std::memset(out.data(), 0, table_bytes);
  const auto put = [&](std::size_t at, const void* from, std::size_t bytes) { std::memcpy(out.data() + at, from, bytes); };
  const auto last = static_cast<std::uint32_t>(segments.size() - 1);
  put(0, &last, sizeof last);
  std::size_t at = table_bytes;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto words = static_cast<std::uint32_t>(segments[i].size());
    put(4 + 4 * i, &words, sizeof words);
    put(at, segments[i].begin(), segments[i].asBytes().size());
    at += segments[i].asBytes().size();
  }
  return out;
}

namespace detail {

Result<kj::ArrayPtr<const capnp::word>> checked_words(const Bytes& body) {
  if (body.size() < sizeof(capnp::word) || body.size() % sizeof(capnp::word) != 0) {
    return fail(invalid_argument("the message is not a whole number of words"));
  }
  std::uint32_t last_segment = 0;
  std::memcpy(&last_segment, body.data(), 4);
  if (last_segment >= kMaxSegments) return fail(invalid_argument("the message has too many segments"));
  const std::size_t table_bytes = ((last_segment + 2) * 4 + 7) / 8 * 8;
  std::uint64_t total = table_bytes / 8;
  if (table_bytes > body.size()) return fail(invalid_argument("the message ends in its segment table"));
  for (std::uint32_t i = 0; i <= last_segment; ++i) {
    std::uint32_t size = 0;
    std::memcpy(&size, body.data() + 4 + 4 * i, 4);
    total += size;
  }
  if (total != body.size() / sizeof(capnp::word)) return fail(invalid_argument("the message's segments do not fill its frame"));
  return kj::arrayPtr(reinterpret_cast<const capnp::word*>(body.data()), body.size() / sizeof(capnp::word));
}

capnp::ReaderOptions reader_options(std::size_t words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = std::max<std::uint64_t>(4 * words, 8 << 10);
  options.nestingLimit = 16;
  return options;
}

Error from_kj(const kj::Exception& e) { return invalid_argument(std::string("a malformed message: ") + e.getDescription().cStr()); }

}  // namespace detail

}  // namespace shoal::runtime
