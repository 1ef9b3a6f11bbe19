#include "runtime/net/ring/frame_rings.h"

#include <cstring>

namespace shoal::runtime {

namespace {

void copy(const Frame& frame, std::span<std::byte> record) {
  const auto header = FrameHeader::for_frame(frame).encode();
  std::byte* to = record.data();
  std::memcpy(to, header.data(), header.size());
  to += header.size();
  if (!frame.body.empty()) std::memcpy(to, frame.body.data(), frame.body.size());
  to += frame.body.size();
  if (!frame.payload.empty()) std::memcpy(to, frame.payload.data(), frame.payload.size());
}

}  // namespace

Result<std::unique_ptr<FrameRings>> FrameRings::make(std::size_t capacity, Fd& memory) {
  SHOAL_TRY(memory, make_memory("shoal-ring", 2 * Ring::bytes(capacity)));
  SHOAL_TRY(Mapping mapping, map(memory, 2 * Ring::bytes(capacity), Access::kReadWrite));
  return std::make_unique<FrameRings>(std::move(mapping), capacity, true);
}

Result<std::unique_ptr<FrameRings>> FrameRings::take(const std::vector<Fd>& memory, std::size_t capacity) {
  if (memory.size() != 1) return fail(resource_exhausted("a ring was offered without its memory"));
  SHOAL_TRY(const std::size_t bytes, memory_bytes(memory[0]));
  if (bytes != 2 * Ring::bytes(capacity)) return fail(invalid_argument("the offered rings have another size"));
  SHOAL_TRY(Mapping mapping, map(memory[0], bytes, Access::kReadWrite));
  return std::make_unique<FrameRings>(std::move(mapping), capacity, false);
}

FrameRings::FrameRings(Mapping memory, std::size_t capacity, bool calls)
    : capacity_(capacity),
      mapping_(std::move(memory)),
      writer_(mapping_.data() + (calls ? 0 : Ring::bytes(capacity)), capacity),
      reader_(mapping_.data() + (calls ? Ring::bytes(capacity) : 0), capacity) {}

Result<std::optional<Wake>> FrameRings::write(const Frame& frame) {
  const bool whole = fits(frame);
  SHOAL_TRY(const auto record, writer_.reserve(whole ? frame.wire_bytes() : 0));
  if (!record) return std::nullopt;
  if (whole) copy(frame, *record);
  return writer_.commit();
}

// Copies the record, because the peer may change it during the parse.
Result<Frame> FrameRings::parse(std::span<const std::byte> record, const FrameLimits& limits) {
  if (record.size() < FrameHeader::kBytes) return fail(invalid_argument("a ring's record is too short for a frame"));
  std::byte head[FrameHeader::kBytes];
  std::memcpy(head, record.data(), sizeof head);
  SHOAL_TRY(const FrameHeader header, decode_header(head, limits));
  const std::size_t body = header.body_bytes, payload = header.payload_bytes;
  if (header.num_fds != 0 || header.kind == FrameKind::kLink || sizeof head + body + payload != record.size()) {
    return fail(invalid_argument("a ring's record is not a frame"));
  }
  const std::byte* const bytes = record.data() + sizeof head;
  return Frame{header.kind, header.method, header.id, Bytes::copy_of(bytes, body), Bytes::copy_of(bytes + body, payload), {}, false};
}

}  // namespace shoal::runtime
