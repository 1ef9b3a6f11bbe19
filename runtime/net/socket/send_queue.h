// SendQueue: frames become a stream's unsent bytes. For socket connections.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runtime/net/frame.h"

namespace shoal::runtime {

// Unsent bytes. Small frames are copied into a common chunk; large payloads and frames with descriptors have chunks of their
// own. A payload beyond a frame's limit goes in parts, ahead of its frame.
class SendQueue {
 public:
  // `version`: the wire version of the connection. `counts_newest`: see waiting_bytes().
  SendQueue(std::uint64_t max_frame_payload, std::uint16_t version, bool counts_newest)
      : max_frame_payload_(max_frame_payload), version_(version), counts_newest_(counts_newest) {}
  std::size_t bytes() const { return bytes_; }
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  // The bytes to compare with the bound for one connection. Between hosts, a large value travels inside its frame, so the newest frame is
  // not counted: it may exceed any bound although the peer reads.
  std::size_t waiting_bytes() const { return counts_newest_ ? bytes_ : bytes_ - std::min(bytes_, newest_bytes_); }
  bool empty() const { return chunks_.empty(); }

  void push(Frame frame);
  // The next bytes to send; empty if there are none.
  std::span<const std::byte> front() const;
  void consume(std::size_t n);
  // Writes as much as the kernel accepts. Returns 0, also on EAGAIN, or errno.
  int write(int fd);

 private:
  struct Slice {
    std::shared_ptr<const Bytes> bytes;
    std::size_t begin = 0, size = 0;
    std::span<const std::byte> span() const { return bytes ? bytes->span().subspan(begin, size) : std::span<const std::byte>(); }
  };
  struct Chunk {
    std::vector<std::byte> text;
    Slice whole;  // used instead of text
    std::vector<Fd> fds;
    std::size_t sent = 0;
    bool open = true;  // takes further frames
    std::span<const std::byte> data() const { return whole.bytes ? whole.span() : std::span<const std::byte>(text); }
  };

  void add(const FrameHeader& header, const Bytes& body, std::span<const std::byte> payload, std::vector<Fd> fds, bool open);
  void add_whole(Slice slice);

  const std::uint64_t max_frame_payload_;
  const std::uint16_t version_;
  const bool counts_newest_;
  std::deque<Chunk> chunks_;
  std::size_t bytes_ = 0, newest_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace shoal::runtime
