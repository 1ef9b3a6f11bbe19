#include "runtime/net/socket/frame_reader.h"

#include <algorithm>
#include <utility>

namespace shoal::runtime {

void FrameReader::Partial::put(const std::byte* data, std::size_t n) {
  const std::size_t to_body = filled < body.size() ? std::min(n, body.size() - filled) : 0;
  if (to_body) std::memcpy(body.data() + filled, data, to_body);
  if (n > to_body) std::memcpy(to + (filled + to_body - body.size()), data + to_body, n - to_body);
  filled += n;
}

std::span<std::byte> FrameReader::room(std::span<std::byte> scratch) {
  if (current_ && current_->missing_in_place() >= kReadBytes) return current_->place();
  scratch_ = scratch;
  std::ranges::copy(rest_, scratch_.begin());
  return scratch_.subspan(rest_.size());
}

Result<void> FrameReader::arrived(std::size_t n, std::vector<Frame>& out) {
  if (current_ && current_->missing_in_place() >= kReadBytes) {
    current_->filled += n;
    return finish_if_complete(out);
  }
  return parse(scratch_.first(rest_.size() + n), out);
}

Result<void> FrameReader::go_on(std::vector<Frame>& out) {
  waits_ = false;
  if (std::exchange(has_message_, false)) account_.give_back();
  const auto bytes = std::exchange(rest_, {});
  return parse(bytes, out);
}

Result<void> FrameReader::parse(std::span<const std::byte> bytes, std::vector<Frame>& out) {
  std::size_t at = 0;
  while (!waits_) {
    if (!current_) {
      if (bytes.size() - at < FrameHeader::kBytes) break;
      SHOAL_TRY(const FrameHeader header, decode_header(bytes.data() + at, limits_.frame));
      SHOAL_TRY(const bool begun, begin(header));
      if (!begun) {
        waits_ = true;
        break;
      }
      at += FrameHeader::kBytes;
    }
    const std::size_t take = std::min(bytes.size() - at, current_->total() - current_->filled);
    current_->put(bytes.data() + at, take);
    at += take;
    if (current_->filled < current_->total()) break;
    SHOAL_OK(finish_if_complete(out));
  }
  rest_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
  return {};
}

Result<void> FrameReader::check_payload(FrameKind kind, std::uint16_t method, std::uint64_t bytes) const {
  if (kind == FrameKind::kReply && limits_.counts_calls && num_calls_ == 0) {
    return fail(invalid_argument("an answer of " + std::to_string(bytes) + " bytes arrived, and no call waits for one"));
  }
  if (limits_.frame.max_payload_of == nullptr || bytes <= limits_.frame.max_payload_of(kind, method)) return {};
  return fail(invalid_argument("a message of method " + std::to_string(method) + " announces a payload of " + std::to_string(bytes) +
                               " bytes, which exceeds the limit of that method"));
}

Result<bool> FrameReader::begin(const FrameHeader& header) {
  if (is_part(header) && message_.empty()) {
    SHOAL_TRY(const bool begun, begin_message(header));
    if (!begun) return false;
  }
  if (message_.empty()) {
    const std::size_t bytes = std::size_t{header.body_bytes} + header.payload_bytes;
    if (bytes > Budget::kSmallBytes) {
      SHOAL_OK(check_payload(header.kind, header.method, header.payload_bytes));
      if (!account_.take(bytes)) return false;
    }
    SHOAL_OK(begin(header, nullptr));
    return true;
  }
  // The parts arrive consecutively; the first frame that is no part carries the rest.
  const std::size_t left = message_.size() - message_filled_;
  if (!PartOf::has_method(limits_.version) && !is_part(header)) {  // version 1 announces the bytes alone
    SHOAL_OK(check_payload(header.kind, header.method, message_.size()));
    parts_.method = header.method;
    parts_.kind = header.kind;
  }
  const bool fits = is_part(header) ? header.id == part_id_ && header.payload_bytes < left && header.body_bytes == 0
                                    : header.payload_bytes == left && header.kind == parts_.kind && header.method == parts_.method;
  if (!fits) return fail(invalid_argument("the parts of a message differ from their announcement"));
  SHOAL_OK(begin(header, message_.data() + message_filled_));
  message_filled_ += header.payload_bytes;
  return true;
}

Result<bool> FrameReader::begin_message(const FrameHeader& header) {
  const PartOf announced = PartOf::decode(header.id, limits_.version);
  if (announced.kind < FrameKind::kRequest || announced.kind >= FrameKind::kLink) {
    return fail(invalid_argument("a part does not announce the kind of its message"));
  }
  if (announced.total <= header.payload_bytes || announced.total > limits_.max_message_bytes) {
    return fail(invalid_argument("a part of a message is too large"));
  }
  if (PartOf::has_method(limits_.version)) {
    SHOAL_OK(check_payload(announced.kind, announced.method, announced.total));
  } else if (limits_.max_message_bytes <= limits_.frame.max_payload_bytes) {  // a head or node: a peer that keeps the limits sends no parts
    return fail(invalid_argument("a part of a message arrived where no message is larger than a frame"));
  }
  if (!account_.take(announced.total)) return false;
  auto place = allocate(announced.total);
  if (!place) return fail(resource_exhausted("no memory for a message of " + std::to_string(announced.total) + " bytes"));
  message_ = *std::move(place);
  parts_ = announced;
  part_id_ = header.id;
  message_filled_ = 0;
  return true;
}

Result<void> FrameReader::begin(const FrameHeader& header, std::byte* place) {
  auto body = allocate(header.body_bytes), payload = allocate(place == nullptr ? header.payload_bytes : 0);
  if (!body || !payload) {
    const std::size_t bytes = std::size_t{header.body_bytes} + header.payload_bytes;
    return fail(resource_exhausted("no memory for a frame of " + std::to_string(bytes) + " bytes"));
  }
  current_.emplace(header, *std::move(body), *std::move(payload), place);
  return {};
}

Result<void> FrameReader::finish_if_complete(std::vector<Frame>& out) {
  if (current_->filled < current_->total()) return {};
  if (current_->is_part()) {
    current_.reset();
    return {};
  }
  if (!message_.empty()) current_->payload = std::exchange(message_, Bytes());
  Frame frame{current_->header.kind,
              current_->header.method,
              current_->header.id,
              std::move(current_->body),
              std::move(current_->payload),
              {},
              false};
  if (const std::size_t announced = current_->header.num_fds; announced > 0) {
    if (descriptors_.empty() || (!descriptors_.front().lost && descriptors_.front().fds.size() != announced)) {
      return fail(invalid_argument("a frame arrived without the descriptors that it announces"));
    }
    frame.fds_lost = descriptors_.front().lost;
    if (!frame.fds_lost) frame.fds = std::move(descriptors_.front().fds);
    descriptors_.pop_front();
  }
  current_.reset();
  if (num_calls_ > 0 && (frame.kind == FrameKind::kReply || frame.kind == FrameKind::kError)) --num_calls_;
  waits_ = has_message_ = account_.complete();
  out.push_back(std::move(frame));
  return {};
}

}  // namespace shoal::runtime
