#include "runtime/net/socket/frame_reader.h"

#include <algorithm>

namespace shoal::runtime {

void FrameReader::Partial::put(const std::byte* data, std::size_t n) {
  const std::size_t to_body = filled < body.size() ? std::min(n, body.size() - filled) : 0;
  if (to_body) std::memcpy(body.data() + filled, data, to_body);
  if (n > to_body) std::memcpy(to + (filled + to_body - body.size()), data + to_body, n - to_body);
  filled += n;
}

std::span<std::byte> FrameReader::room() {
  if (current_ && current_->missing_in_place() >= kReadBytes) return current_->place();
  return {buffer_.data() + end_, buffer_.size() - end_};
}

Result<void> FrameReader::arrived(std::size_t n, std::vector<Frame>& out) {
  if (current_ && current_->missing_in_place() >= kReadBytes) {
    current_->filled += n;
    return finish_if_complete(out);
  }
  end_ += n;
  while (true) {
    if (!current_) {
      if (end_ - begin_ < FrameHeader::kBytes) break;
      SHOAL_TRY(const FrameHeader header, decode_header(buffer_.data() + begin_, limits_));
      begin_ += FrameHeader::kBytes;
      SHOAL_OK(begin(header));
    }
    const std::size_t take = std::min(end_ - begin_, current_->total() - current_->filled);
    current_->put(buffer_.data() + begin_, take);
    begin_ += take;
    if (current_->filled < current_->total()) break;
    SHOAL_OK(finish_if_complete(out));
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (buffer_.size() - end_ < kReadBytes / 4) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {};
}

Result<void> FrameReader::begin(const FrameHeader& header) {
  const bool part = is_part(header);
  if (part && message_.empty()) {
    if (header.id <= header.payload_bytes || header.id > max_message_bytes_)
      return fail(invalid_argument("a part of a message is too large"));
    auto place = allocate(header.id);
    if (!place) return fail(resource_exhausted("no memory for a message of " + std::to_string(header.id) + " bytes"));
    message_ = *std::move(place);
    message_filled_ = 0;
  }
  if (message_.empty()) return begin(header, nullptr);
  // The parts arrive consecutively; the first frame that is no part carries the rest.
  const std::size_t left = message_.size() - message_filled_;
  if (part ? header.id != message_.size() || header.payload_bytes >= left || header.body_bytes != 0 : header.payload_bytes != left) {
    return fail(invalid_argument("the parts of a message differ from their announcement"));
  }
  SHOAL_OK(begin(header, message_.data() + message_filled_));
  message_filled_ += header.payload_bytes;
  return {};
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
  out.push_back(std::move(frame));
  return {};
}

}  // namespace shoal::runtime
