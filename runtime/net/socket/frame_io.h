// Conversion between frames and a stream's bytes: FrameReader for received bytes, SendQueue for unsent ones. For socket connections.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/net/frame.h"

namespace shoal::runtime {

inline constexpr std::size_t kReadBytes = 64 << 10;
inline constexpr std::size_t kCoalesceBytes = 32 << 10;  // largest frame that shares a chunk
inline constexpr std::size_t kMaxIov = 16;

// Parses a stream of bytes into frames. Large payloads are read directly into their destination.
class FrameReader {
 public:
  // Messages of up to max_message_bytes arrive in parts (SendQueue), each of them a frame within the limits.
  FrameReader(const FrameLimits& limits, std::uint64_t max_message_bytes) : limits_(limits), max_message_bytes_(max_message_bytes) {}

  // Buffer for the next bytes, at least one byte.
  std::span<std::byte> room() {
    if (current_ && current_->missing_in_place() >= kReadBytes) return current_->place();
    return {buffer_.data() + end_, buffer_.size() - end_};
  }

  // Takes n bytes that were read into room(). Appends finished frames to `out`.
  Result<void> arrived(std::size_t n, std::vector<Frame>& out) {
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

  // The descriptors that came with one read: all those of one frame.
  struct Descriptors {
    std::vector<Fd> fds;
    bool lost = false;  // the kernel could not open all of them
  };
  void add(Descriptors descriptors) { descriptors_.push_back(std::move(descriptors)); }
  std::size_t num_loose() const { return descriptors_.size(); }

 private:
  struct Partial {
    // The payload goes to `place`, or to a buffer of its own if that is null.
    Partial(const FrameHeader& header, Bytes body, Bytes payload, std::byte* place)
        : header(header), body(std::move(body)), payload(std::move(payload)), to(place != nullptr ? place : this->payload.data()) {}
    bool is_part() const { return FrameReader::is_part(header); }
    std::size_t total() const { return body.size() + header.payload_bytes; }
    void put(const std::byte* data, std::size_t n) {
      const std::size_t to_body = filled < body.size() ? std::min(n, body.size() - filled) : 0;
      if (to_body) std::memcpy(body.data() + filled, data, to_body);
      if (n > to_body) std::memcpy(to + (filled + to_body - body.size()), data + to_body, n - to_body);
      filled += n;
    }
    // Missing bytes of the payload, once the body is complete; else 0.
    std::size_t missing_in_place() const { return filled >= body.size() ? total() - filled : 0; }
    std::span<std::byte> place() { return {to + (filled - body.size()), total() - filled}; }

    FrameHeader header;
    Bytes body, payload;
    std::byte* to;  // destination of the payload: the message in parts, or `payload`
    std::size_t filled = 0;
  };

  static bool is_part(const FrameHeader& header) {
    return header.kind == FrameKind::kLink && header.method == static_cast<std::uint16_t>(LinkMethod::kPart);
  }

  Result<void> begin(const FrameHeader& header) {
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

  Result<void> begin(const FrameHeader& header, std::byte* place) {
    auto body = allocate(header.body_bytes), payload = allocate(place == nullptr ? header.payload_bytes : 0);
    if (!body || !payload) {
      const std::size_t bytes = std::size_t{header.body_bytes} + header.payload_bytes;
      return fail(resource_exhausted("no memory for a frame of " + std::to_string(bytes) + " bytes"));
    }
    current_.emplace(header, *std::move(body), *std::move(payload), place);
    return {};
  }

  Result<void> finish_if_complete(std::vector<Frame>& out) {
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

  const FrameLimits limits_;
  const std::uint64_t max_message_bytes_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes + kReadBytes / 4);
  std::size_t begin_ = 0, end_ = 0;
  std::optional<Partial> current_;
  Bytes message_;  // the payload that arrives in parts
  std::size_t message_filled_ = 0;
  std::deque<Descriptors> descriptors_;
};

// Unsent bytes. Small frames are copied into a common chunk; large payloads and frames with descriptors have chunks of their
// own. A payload beyond a frame's limit goes in parts, ahead of its frame.
class SendQueue {
 public:
  explicit SendQueue(std::uint64_t max_frame_payload) : max_frame_payload_(max_frame_payload) {}
  std::size_t bytes() const { return bytes_; }
  bool empty() const { return chunks_.empty(); }

  void push(Frame frame) {
    FrameHeader header = FrameHeader::of(frame);
    const bool small = frame.wire_bytes() <= kCoalesceBytes;
    if (small || frame.payload.empty()) return add(header, frame.body, frame.payload.span(), std::move(frame.fds), small);
    const auto payload = std::make_shared<const Bytes>(std::move(frame.payload));
    std::size_t at = 0;
    for (; payload->size() - at > max_frame_payload_; at += max_frame_payload_) {
      const FrameHeader part{0,
                             static_cast<std::uint32_t>(max_frame_payload_),
                             payload->size(),
                             static_cast<std::uint16_t>(LinkMethod::kPart),
                             FrameKind::kLink,
                             0};
      add(part, {}, {}, {}, false);
      add_whole({payload, at, max_frame_payload_});
    }
    header.payload_bytes = static_cast<std::uint32_t>(payload->size() - at);
    add(header, frame.body, {}, std::move(frame.fds), false);
    add_whole({payload, at, payload->size() - at});
  }

  // The next bytes to send; empty if there are none.
  std::span<const std::byte> front() const {
    return chunks_.empty() ? std::span<const std::byte>() : chunks_.front().data().subspan(chunks_.front().sent);
  }
  void consume(std::size_t n) {
    bytes_ -= n;
    while (n > 0) {
      auto& c = chunks_.front();
      const std::size_t take = std::min(n, c.data().size() - c.sent);
      c.sent += take;
      n -= take;
      if (c.sent < c.data().size()) {
        c.open = false;  // appending to a half-sent vector would move the rest each time
        return;
      }
      chunks_.pop_front();
    }
  }

  // Writes as much as the kernel accepts. Returns 0, also on EAGAIN, or errno.
  int write(int fd) {
    while (!chunks_.empty()) {
      iovec iov[kMaxIov];
      std::size_t count = 0;
      for (auto it = chunks_.begin(); it != chunks_.end() && count < kMaxIov; ++it) {
        if (count > 0 && !it->fds.empty()) break;  // because descriptors go with the first byte of their chunk
        const auto data = it->data().subspan(it->sent);
        iov[count++] = {const_cast<std::byte*>(data.data()), data.size()};
      }
      msghdr message{};
      message.msg_iov = iov;
      message.msg_iovlen = count;
      auto& first = chunks_.front();
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FrameLimits::kMaxFds)];
      if (!first.fds.empty()) {
        const std::size_t n = first.fds.size();
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        for (std::size_t i = 0; i < n; ++i) {
          const int raw = first.fds[i].get();
          std::memcpy(CMSG_DATA(c) + i * sizeof(int), &raw, sizeof raw);
        }
      }
      const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
      }
      first.fds.clear();
      consume(static_cast<std::size_t>(n));
    }
    return 0;
  }

 private:
  struct Slice {
    std::shared_ptr<const Bytes> of;
    std::size_t begin = 0, size = 0;
    std::span<const std::byte> span() const { return of ? of->span().subspan(begin, size) : std::span<const std::byte>(); }
  };
  struct Chunk {
    std::vector<std::byte> text;
    Slice whole;  // used instead of text
    std::vector<Fd> fds;
    std::size_t sent = 0;
    bool open = true;  // for further frames
    std::span<const std::byte> data() const { return whole.of ? whole.span() : std::span<const std::byte>(text); }
  };

  void add(const FrameHeader& header, const Bytes& body, std::span<const std::byte> payload, std::vector<Fd> fds, bool open) {
    const auto head = header.encode();
    bytes_ += head.size() + body.size() + payload.size();
    if (!fds.empty() || chunks_.empty() || !chunks_.back().open || chunks_.back().text.size() > kReadBytes) {
      chunks_.emplace_back();
      chunks_.back().fds = std::move(fds);
    }
    auto& text = chunks_.back().text;
    append(text, head);
    append(text, body.span());
    append(text, payload);
    chunks_.back().open = open;
  }

  void add_whole(Slice slice) {
    bytes_ += slice.size;
    chunks_.emplace_back();
    chunks_.back().whole = std::move(slice);
    chunks_.back().open = false;
  }

  static void append(std::vector<std::byte>& text, std::span<const std::byte> bytes) {
    text.insert(text.end(), bytes.begin(), bytes.end());
  }

  const std::uint64_t max_frame_payload_;
  std::deque<Chunk> chunks_;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::runtime
