// Two rings in one memory that carry frames, one ring per direction.
//
// A record is a frame's bytes, or empty: then the frame comes by another way, in this place of the order. Records that a peer wrote are
// checked. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/net/frame.h"
#include "runtime/shm/memory.h"
#include "runtime/shm/ring.h"

namespace shoal::runtime {

class FrameRings {
 public:
  // The caller's end, which writes the first ring; `memory` is for the listener. `capacity`: bytes per direction.
  static Result<std::unique_ptr<FrameRings>> make(std::size_t capacity, Fd& memory);
  // The listener's end, from the descriptors that came with the offer.
  static Result<std::unique_ptr<FrameRings>> take(const std::vector<Fd>& memory, std::size_t capacity);

  FrameRings(Mapping memory, std::size_t capacity, bool calls);

  // ---- writing ----
  // False for a frame with descriptors or too many bytes: write() puts an empty record in its place, and the frame goes over the socket.
  bool fits(const Frame& frame) const { return frame.fds.empty() && frame.wire_bytes() <= Ring::max_record(capacity_); }
  // Returns nullopt without room, and InvalidArgument/BrokenRing if the peer's position in the ring is impossible.
  Result<std::optional<Wake>> write(const Frame& frame);
  // Returns false if there is room for the frame now. Otherwise the peer's step that makes room wakes this end, once.
  bool arm_for_room(const Frame& frame) { return writer_.arm(record_bytes(frame)); }

  // ---- reading ----
  // The next record, which stays until pop(); nullopt if there is none. Returns InvalidArgument/BrokenRing if the record's length or place
  // is impossible.
  Result<std::optional<std::span<const std::byte>>> peek() { return reader_.peek(); }
  // The frame of a record that is not empty. Returns InvalidArgument for a record that is no frame within `limits`.
  static Result<Frame> parse(std::span<const std::byte> record, const FrameLimits& limits);
  Wake pop() { return reader_.pop(); }
  // Returns false if there is a record now. Otherwise the peer's next record wakes this end, once.
  bool arm_for_record() { return reader_.arm(); }
  void disarm() { reader_.disarm(); }
  // More records than this cannot be in the ring.
  std::size_t max_records() const { return capacity_ / 8; }

 private:
  std::size_t record_bytes(const Frame& frame) const { return fits(frame) ? frame.wire_bytes() : 0; }

  const std::size_t capacity_;
  const Mapping mapping_;
  RingWriter writer_;
  RingReader reader_;
};

}  // namespace shoal::runtime
