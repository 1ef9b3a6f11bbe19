// A ring: records of bytes from one process to one other, in order, through memory that both map. No system call while neither sleeps.
//
// One thread at a time writes and one reads. A record lies in one piece, so that it can be written and read in place. Two rings, one for
// each way, may lie in one memory. Pages are touched as they are used, and from the start again whenever little is under way: who begins
// anew has the whole ring before it, whatever it leaves behind.
//
// Waiting. Each end that finds nothing to do leaves a word in the ring how it sleeps, looks once more, and sleeps; the other end looks at
// that word after each of its steps (commit, pop).
//   - wait(): looks for a while where that pays (spin.h), then sleeps on the word itself, a futex. The other end's step wakes it.
//   - arm(): for a thread that sleeps in epoll. The other end's step then returns Wake::kBell, once, and whoever made that step does what
//     ends the sleep: writes to an eventfd, or to a socket between the two.
//   - Looking again and again needs no word, and costs the other end nothing.
// A step is seen, or wakes, but never gets lost between the two.
//
// Death. What a process that was killed had committed can be read; what it had not does not exist. Nobody is woken by a death: whoever
// hears of it (the node, the end of a socket beside the ring) calls close() on its own mapping, which ends the waits of both ends; or waits
// are made in slices.
//
// Trust. The other end is a process of ours, but its mistakes stay its own: what it writes, positions and lengths, is read once and
// checked, and what cannot be ends in InvalidArgument/BrokenRing, never beyond the ring. A record's bytes may change under the reader's
// eyes if the writer has gone wild: copy first what has to be parsed.
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

// What a step asks of its caller.
enum class Wake {
  kNone,  // nobody sleeps, or the futex was woken
  kBell,  // the other end sleeps in epoll: ring
};

enum class Waited { kReady, kClosed, kTimeout };

// What both ends have in the memory. Zeroed memory is an empty ring.
class Ring {
 public:
  static constexpr std::size_t kHeaderBytes = 512;
  static constexpr std::size_t bytes(std::size_t capacity) { return kHeaderBytes + capacity; }
  // The largest record: so that it fits into an empty ring wherever that begins.
  static constexpr std::size_t max_record(std::size_t capacity) { return capacity / 2 - 8; }

  // `memory`: bytes(capacity) of them, aligned to 64 and mapped for longer than this lives. A capacity is a power of two, 4 KiB to 1 GiB.
  Ring(std::byte* memory, std::size_t capacity);

  // No more is written. What lies there can still be read; waits end. From either end, or from a third process. kBell: an end that
  // is armed has to be told by the caller.
  Wake close();
  bool closed() const { return page_->closed.load() != 0; }

 protected:
  enum Sleep : std::uint32_t { kAwake = 0, kFutex = 1, kBell = 2 };
  struct Page {
    alignas(64) std::atomic<std::uint64_t> written;        // position after the last record; the writer's
    std::atomic<std::uint64_t> restarted;                  // where it last began anew: a reader that stands before goes on there
    alignas(64) std::atomic<std::uint64_t> read;           // position of the first record that is not read; the reader's
    alignas(64) std::atomic<std::uint32_t> reader_sleeps;  // Sleep; set by the one who sleeps, taken back by whoever ends it
    alignas(64) std::atomic<std::uint32_t> writer_sleeps;
    alignas(64) std::atomic<std::uint32_t> closed;
  };
  static_assert(sizeof(Page) <= kHeaderBytes && std::atomic<std::uint64_t>::is_always_lock_free);
  static constexpr std::uint32_t kPad = 0xffffffff;  // instead of a length: the next record is at the ring's start
  static std::uint64_t room_for(std::uint64_t record_bytes) { return 8 + ((record_bytes + 7) & ~std::uint64_t{7}); }

  std::uint64_t offset(std::uint64_t position) const { return position & (capacity_ - 1); }
  static Wake wake(std::atomic<std::uint32_t>& sleeps);
  // Sleeps on the word until it is taken back, ready() holds or `limit` has passed.
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

  // Where to write a record of so many bytes (at most max_record; a record may be empty), aligned to 8; nothing while there is no
  // room. Beside the records that are not popped there may be taken: an eighth of the ring, by popped ones, and less than one record, at
  // its end, where the next had no room.
  // BrokenRing: the reader's position cannot be.
  Result<std::optional<std::span<std::byte>>> reserve(std::size_t bytes);
  // The reserved record can be read. It is gone if this is not called before the next reserve().
  Wake commit();

  // Until there is room for so many bytes. BrokenRing does not wait: reserve() will say so.
  Waited wait(std::size_t bytes, std::chrono::nanoseconds limit, Spin& spin);
  // False if there is room now. Otherwise the reader rings, once, when there is.
  bool arm(std::size_t bytes);
  void disarm() { page_->writer_sleeps.store(kAwake); }

 private:
  bool has_room(std::size_t bytes);
  std::uint64_t taken() const { return written_ - std::max(read_, restarted_); }
  bool broken() const { return read_ > written_ || taken() > capacity_ || read_ % 8 != 0; }

  std::uint64_t written_ = 0, restarted_ = 0;
  std::uint64_t reserved_ = 0, reserved_restart_ = 0;  // what they become by commit()
  std::uint64_t read_ = 0;                             // as it was last seen
};

class RingReader final : public Ring {
 public:
  RingReader(std::byte* memory, std::size_t capacity) : Ring(memory, capacity) {}

  // The next record, in place until pop(); nothing when there is none. BrokenRing.
  Result<std::optional<std::span<const std::byte>>> peek();
  // The record that peek() gave is done with.
  Wake pop();

  // Until there is a record (or something broken, of which peek() tells). kClosed only after the last record.
  Waited wait(std::chrono::nanoseconds limit, Spin& spin);
  // False if there is something to read now. Otherwise the writer rings, once, when there is.
  bool arm();
  void disarm() { page_->reader_sleeps.store(kAwake); }
  bool empty() const { return page_->written.load() == read_; }

 private:
  std::uint64_t read_ = 0, next_ = 0;
  std::uint64_t published_ = 0;  // what the writer knows of read_
  std::uint64_t written_ = 0;    // as it was last seen
};

}  // namespace shoal::runtime
