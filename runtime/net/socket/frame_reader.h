// FrameReader: a stream's bytes as they arrive become frames. For socket connections.
#pragma once

#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/net/frame.h"

namespace shoal::runtime {

// Parses a stream of bytes into frames. Large payloads are read directly into their destination.
class FrameReader {
 public:
  static constexpr std::size_t kReadBytes = 64 << 10;  // largest read; a payload that misses more is read into its place

  // Messages of up to max_message_bytes arrive in parts (SendQueue), each of them a frame within the limits.
  FrameReader(const FrameLimits& limits, std::uint64_t max_message_bytes) : limits_(limits), max_message_bytes_(max_message_bytes) {}

  // Buffer for the next bytes, at least one byte.
  std::span<std::byte> room();
  // Takes n bytes that were read into room(). Appends finished frames to `out`.
  Result<void> arrived(std::size_t n, std::vector<Frame>& out);

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
    void put(const std::byte* data, std::size_t n);
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
  Result<void> begin(const FrameHeader& header);
  Result<void> begin(const FrameHeader& header, std::byte* place);
  Result<void> finish_if_complete(std::vector<Frame>& out);

  const FrameLimits limits_;
  const std::uint64_t max_message_bytes_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes + kReadBytes / 4);
  std::size_t begin_ = 0, end_ = 0;
  std::optional<Partial> current_;
  Bytes message_;  // the payload that arrives in parts
  std::size_t message_filled_ = 0;
  std::deque<Descriptors> descriptors_;
};

}  // namespace shoal::runtime
