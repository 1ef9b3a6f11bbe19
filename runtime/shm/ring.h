// A ring: records of bytes from one process to another, in order, through memory that both map. No system call while neither end sleeps.
//
// One thread at a time writes and one reads. A record is contiguous, so that it can be written and read in place. Two rings, one per
// direction, may share one memory. Pages are touched on first use. Under light traffic the writer restarts at the beginning of the ring, so
// few pages are used; after a restart the whole ring is available.
//
// Waiting. An end without work stores its kind of sleep in a word of the ring, checks once more, and sleeps. The peer checks that word
// after each of its steps (commit, pop).
//   - wait(): spins while that pays (spin.h), then sleeps on the word itself, a futex. The peer's step wakes it.
//   - arm(): for a thread that sleeps in epoll. The peer's next step returns Wake::kBell once, and its caller ends the sleep by a write to
//     an eventfd or a socket.
//   - Polling needs no word, and costs the peer nothing.
// So every step is either seen by the second check, or wakes the sleeper.
//
// Death. Records that a killed process had committed remain readable; uncommitted ones do not exist. A death wakes no waiter. Its observer
// (the node, or the peer at the end of a socket) calls close() on its own mapping, which ends all waits. Where no process observes deaths,
// a wait needs a limit, and is repeated.
//
// Trust. The peer is one of Shoal's processes, but its bugs must not spread. Its positions and lengths are read once and checked; invalid
// ones result in InvalidArgument/BrokenRing, never in an access beyond the ring. A faulty writer may change a record while it is read, so
// copy a record before parsing it.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/result.h"
#include "runtime/shm/spin.h"

namespace shoal::runtime {

// The action for the peer that a step requires of its caller.
enum class Wake {
  kNone,  // nothing: no sleeper, or a futex that was woken
  kBell,  // wake the peer, which sleeps in epoll
};

enum class Waited { kReady, kClosed, kTimeout };

// The part common to both ends. Zeroed memory is an empty ring.
class Ring {
 public:
  static constexpr std::size_t kHeaderBytes = 512;
  static constexpr std::size_t bytes(std::size_t capacity) { return kHeaderBytes + capacity; }
  // Largest record in bytes, which fits into an empty ring at any position.
  static constexpr std::size_t max_record(std::size_t capacity) { return capacity / 2 - 8; }

  // `memory` has bytes(capacity) bytes, aligned to 64, and outlives this object. `capacity` is a power of two, 4 KiB to 1 GiB.
  Ring(std::byte* memory, std::size_t capacity);

  // Ends all waits; records in the ring can still be read. Either end may call it, and a third process, too. If it returns kBell, the
  // caller has to wake the end that sleeps in epoll.
  Wake close();
  bool closed() const { return page_->closed.load() != 0; }

 protected:
  enum Sleep : std::uint32_t { kAwake = 0, kFutex = 1, kBell = 2 };
  struct Page {
    alignas(64) std::atomic<std::uint64_t> written;        // position after the last record; written by the writer
    std::atomic<std::uint64_t> restarted;                  // position of the last restart; a reader that is before it skips to it
    alignas(64) std::atomic<std::uint64_t> read;           // position of the first unread record; written by the reader
    alignas(64) std::atomic<std::uint32_t> reader_sleeps;  // Sleep; set by the sleeper, reset by the end that wakes it
    alignas(64) std::atomic<std::uint32_t> writer_sleeps;
    alignas(64) std::atomic<std::uint32_t> closed;
  };
  static_assert(sizeof(Page) <= kHeaderBytes && std::atomic<std::uint64_t>::is_always_lock_free);
  static constexpr std::uint32_t kPad = 0xffffffff;  // in place of a length: the next record is at the ring's start
  static std::uint64_t room_for(std::uint64_t record_bytes) { return 8 + ((record_bytes + 7) & ~std::uint64_t{7}); }

  std::uint64_t offset(std::uint64_t position) const { return position & (capacity_ - 1); }
  static Wake wake(std::atomic<std::uint32_t>& sleeps);
  // Spins, then sleeps on the word until ready() holds, the ring is closed, or `limit` has passed.
  template <class Ready>
  Waited sleep(std::atomic<std::uint32_t>& sleeps, std::chrono::nanoseconds limit, Spin& spin, Ready&& ready);
  static void futex_wait(std::atomic<std::uint32_t>& word, std::chrono::nanoseconds limit);

  Page* page_;
  std::byte* data_;
  std::uint64_t capacity_;
};

class RingWriter final : public Ring {
 public:
  RingWriter(std::byte* memory, std::size_t capacity) : Ring(memory, capacity) {}

  // Returns the place, aligned to 8, for a record of `bytes` bytes (0 to max_record), or nullopt without room. Besides unread records,
  // popped ones may occupy up to an eighth of the ring, and padding at its end less than one record. Returns InvalidArgument/BrokenRing if
  // the reader's position is invalid.
  Result<std::optional<std::span<std::byte>>> reserve(std::size_t bytes);
  // Publishes the reserved record. Without it, the next reserve() discards that record.
  Wake commit();

  // Waits for room for a record of `bytes` bytes. Returns at once on a broken ring, which reserve() reports.
  Waited wait(std::size_t bytes, std::chrono::nanoseconds limit, Spin& spin);
  // Prepares a sleep in epoll. Returns false if there is room now. Otherwise the reader's step that makes room returns kBell, once.
  bool arm(std::size_t bytes);
  void disarm() { page_->writer_sleeps.store(kAwake); }

 private:
  bool has_room(std::size_t bytes);
  std::uint64_t taken() const { return written_ - std::max(read_, restarted_); }
  bool broken() const { return read_ > written_ || taken() > capacity_ || read_ % 8 != 0; }

  std::uint64_t written_ = 0, restarted_ = 0;
  std::uint64_t reserved_ = 0, reserved_restart_ = 0;  // the values that commit() gives to written_ and restarted_
  std::uint64_t read_ = 0;                             // last seen value
};

class RingReader final : public Ring {
 public:
  RingReader(std::byte* memory, std::size_t capacity) : Ring(memory, capacity) {}

  // Returns the next record, valid until pop(), or nullopt if there is none. Returns InvalidArgument/BrokenRing for an invalid length or
  // position.
  Result<std::optional<std::span<const std::byte>>> peek();
  // Releases the record that peek() returned.
  Wake pop();

  // Waits for a record; returns at once on a broken ring, which peek() reports. kClosed only after the last record.
  Waited wait(std::chrono::nanoseconds limit, Spin& spin);
  // Prepares a sleep in epoll. Returns false if there is a record now. Otherwise the writer's next commit returns kBell, once.
  bool arm();
  void disarm() { page_->reader_sleeps.store(kAwake); }
  bool empty() const { return page_->written.load() == read_; }

 private:
  std::uint64_t read_ = 0, next_ = 0;
  std::uint64_t published_ = 0;  // the value of read_ that the writer can see
  std::uint64_t written_ = 0;    // the writer's position when this end last read it
};

}  // namespace shoal::runtime
