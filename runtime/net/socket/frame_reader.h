// FrameReader: a stream's bytes as they arrive become frames. For socket connections.
#pragma once

#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/net/frame.h"
#include "runtime/net/hello.h"
#include "runtime/net/socket/budget.h"
#include "runtime/net/socket/part.h"

namespace shoal::runtime {

// Parses a stream of bytes into frames. Large payloads are read directly into their destination. A connection that is idle between two
// frames has no memory here.
class FrameReader {
 public:
  static constexpr std::size_t kReadBytes = Budget::kReadBytes;  // a payload of which more is missing is read straight into its place

  struct Limits {
    FrameLimits frame;
    // Messages of up to these bytes arrive in parts (SendQueue), each of them a frame within the limits.
    std::uint64_t max_message_bytes = 0;
    std::uint16_t version = VersionRange{}.newest;  // the wire version of the connection
    bool counts_calls = false;                      // expect_answer() reports all calls, so a large answer without a call is refused
  };
  // `account`: gives the memory for messages beyond Budget::kSmallBytes.
  FrameReader(const Limits& limits, Budget::Account& account) : limits_(limits), account_(account) {}

  // Buffer for the next bytes, at least one byte: in `scratch` (kReadBytes), or a payload's place. Not while a message waits.
  std::span<std::byte> room(std::span<std::byte> scratch);
  // Takes n bytes that were read into room(). Appends finished frames to `out`.
  Result<void> arrived(std::size_t n, std::vector<Frame>& out);
  // True while a message waits for its memory (Account::take). Also true while a complete message with such memory, the last frame so far,
  // waits for the handler: its memory counts until then. Afterwards go_on() continues with what has arrived.
  bool waits() const { return waits_; }
  bool has_message() const { return has_message_; }  // a complete message waits for the handler
  Result<void> go_on(std::vector<Frame>& out);
  // A call was sent.
  void expect_answer() { ++num_calls_; }

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
  Result<void> parse(std::span<const std::byte> bytes, std::vector<Frame>& out);
  // These functions begin a frame; begin() returns false if it has to wait for memory.
  Result<bool> begin(const FrameHeader& header);
  Result<bool> begin_message(const FrameHeader& header);
  Result<void> begin(const FrameHeader& header, std::byte* place);
  Result<void> check_payload(FrameKind kind, std::uint16_t method, std::uint64_t bytes) const;
  Result<void> finish_if_complete(std::vector<Frame>& out);

  const Limits limits_;
  Budget::Account& account_;
  std::span<std::byte> scratch_;  // between room() and arrived()
  std::vector<std::byte> rest_;   // bytes of the next frames: less than a header, unless waits_ is true
  bool waits_ = false, has_message_ = false;
  std::uint64_t num_calls_ = 0;  // calls that have no answer yet
  std::optional<Partial> current_;
  Bytes message_;  // the payload that arrives in parts
  PartOf parts_;   // the peer's announcement of that payload
  std::uint64_t part_id_ = 0;
  std::size_t message_filled_ = 0;
  std::deque<Descriptors> descriptors_;
};

}  // namespace shoal::runtime
