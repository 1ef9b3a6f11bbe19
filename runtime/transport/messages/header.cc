#include "runtime/transport/messages/header.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/core/utf8.h"

namespace shoal::runtime {

Header Header::from_entry(const Entry& entry) {
  Header h;
  h.collective = static_cast<std::uint8_t>(entry.kind);
  h.dtype = static_cast<std::uint8_t>(entry.dtype);
  h.op = static_cast<std::uint8_t>(entry.op);
  h.root = entry.root;
  h.sequence = entry.sequence;
  h.bytes = entry.bytes;
  h.counts = entry.counts;
  h.step = entry.step;
  const std::string label(utf8_prefix(valid_utf8(entry.label), kLabelBytes - 1));
  std::memcpy(h.label, label.data(), label.size());
  return h;
}

Entry Header::entry() const {
  Entry e;
  e.sequence = sequence;
  e.kind = static_cast<Collective>(collective);
  e.dtype = static_cast<DType>(dtype);
  e.op = static_cast<ReduceOp>(op);
  e.root = root;
  e.bytes = bytes;
  e.counts = counts;
  e.step = step;
  e.label.assign(label, strnlen(label, kLabelBytes));
  return e;
}

std::vector<std::byte> encode(Header header, std::span<const std::byte> data) {
  header.inline_bytes = static_cast<std::uint32_t>(data.size());
  std::vector<std::byte> out(sizeof header + data.size());
  std::memcpy(out.data(), &header, sizeof header);
  if (!data.empty()) std::memcpy(out.data() + sizeof header, data.data(), data.size());
  return out;
}

Result<Header> decode(std::span<const std::byte> message) {
  Header h;
  if (message.size() < sizeof h) return fail(invalid_argument(fmt::format("a message of {} bytes has no header", message.size())));
  std::memcpy(&h, message.data(), sizeof h);
  // The sender states both sizes, and receivers copy `inline_bytes` into memory for `sent` bytes.
  if (message.size() != sizeof h + h.inline_bytes || h.inline_bytes != (h.sent <= kInlineBytes ? h.sent : 0) ||
      h.collective > static_cast<std::uint8_t>(Collective::kBarrier) || h.dtype >= kNumDTypes || h.op >= kNumReduceOps) {
    return fail(invalid_argument(fmt::format("a message of {} bytes has a malformed header", message.size())));
  }
  return h;
}

Error wrong_size(int sender) {
  return data_loss(fmt::format("a message of rank {} has another size than its header announces", sender))
      .with_reason("MalformedMessage")
      .with_hint("run the same version of Shoal on every rank");
}

}  // namespace shoal::runtime
