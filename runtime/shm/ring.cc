#include "runtime/shm/ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {

// A writer that reaches a multiple of this while the ring is empty restarts at its beginning, so that light traffic uses few pages.
constexpr std::uint64_t kRestartBytes = 16 << 10;

Error broken(const char* what) { return invalid_argument(std::string("a ring has an impossible ") + what).with_reason("BrokenRing"); }

// The length word of a record, atomic because a faulty peer may write it concurrently.
std::atomic_ref<std::uint64_t> word_at(std::byte* at) { return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(at)); }

}  // namespace

Ring::Ring(std::byte* memory, std::size_t capacity)
    : page_(reinterpret_cast<Page*>(memory)), data_(memory + kHeaderBytes), capacity_(capacity) {
  SHOAL_CHECK(std::has_single_bit(capacity) && capacity >= 4096 && capacity <= (1u << 30),
              "a ring's capacity must be a power of two from 4096 to 1 GiB");
}

// Sequentially consistent, like the positions: either this end sees that the peer sleeps, or the peer sees this step before it sleeps.
Wake Ring::wake(std::atomic<std::uint32_t>& sleeps) {
  if (sleeps.load() == kAwake) return Wake::kNone;
  const std::uint32_t how = sleeps.exchange(kAwake);
  if (how == kAwake) return Wake::kNone;
  if (how != kFutex) return Wake::kBell;
  syscall(SYS_futex, &sleeps, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return Wake::kNone;
}

Wake Ring::close() {
  page_->closed.store(1);
  const Wake reader = wake(page_->reader_sleeps), writer = wake(page_->writer_sleeps);
  return reader == Wake::kBell || writer == Wake::kBell ? Wake::kBell : Wake::kNone;
}

void Ring::futex_wait(std::atomic<std::uint32_t>& word, std::chrono::nanoseconds limit) {
  const auto ns = limit.count();
  const timespec wait{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  // After EINTR and EAGAIN the condition is checked again.
  syscall(SYS_futex, &word, FUTEX_WAIT, static_cast<std::uint32_t>(kFutex), &wait, nullptr, 0);
}

template <class Ready>
Waited Ring::sleep(std::atomic<std::uint32_t>& sleeps, std::chrono::nanoseconds limit, Spin& spin, Ready&& ready) {
  const auto over = [&] { return ready() || closed(); };
  if (over() || (spin.should_spin() && spin.run(over, limit))) return ready() ? Waited::kReady : Waited::kClosed;
  const auto deadline = std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24));
  while (true) {
    sleeps.store(kFutex);
    const auto left = deadline - std::chrono::steady_clock::now();
    if (over() || left <= std::chrono::nanoseconds(0)) {
      sleeps.store(kAwake);
      return ready() ? Waited::kReady : closed() ? Waited::kClosed : Waited::kTimeout;
    }
    futex_wait(sleeps, left);
  }
}

// ---- writer

bool RingWriter::has_room(std::size_t bytes) {
  const auto need = room_for(bytes);
  const auto to_end = capacity_ - offset(written_);
  const auto total = need > to_end ? to_end + need : need;
  if (capacity_ - taken() >= total) return true;
  read_ = page_->read.load();
  return broken() || capacity_ - taken() >= total;
}

Result<std::optional<std::span<std::byte>>> RingWriter::reserve(std::size_t bytes) {
  SHOAL_CHECK(bytes <= max_record(capacity_), "the record exceeds the ring's limit");
  const auto need = room_for(bytes);
  if (!has_room(bytes)) return std::optional<std::span<std::byte>>();
  if (broken()) return fail(runtime::broken("reader's position"));
  const auto at = offset(written_), to_end = capacity_ - at;
  reserved_ = written_;
  reserved_restart_ = restarted_;
  const bool beyond = need > to_end;
  if (beyond || (at / kRestartBytes != (at + need) / kRestartBytes && at > 0)) {
    read_ = page_->read.load();
    if (read_ == written_) {
      reserved_ = reserved_restart_ = written_ + to_end;
    } else if (beyond) {
      word_at(data_ + at).store(kPad, std::memory_order_relaxed);
      reserved_ += to_end;
    }
  }
  auto* const record = data_ + offset(reserved_);
  word_at(record).store(bytes, std::memory_order_relaxed);
  reserved_ += need;
  return std::span(record + 8, bytes);
}

Wake RingWriter::commit() {
  SHOAL_CHECK(reserved_ != written_, "the committed record was not reserved");
  if (restarted_ != reserved_restart_) {
    restarted_ = reserved_restart_;
    page_->restarted.store(restarted_, std::memory_order_relaxed);
  }
  written_ = reserved_;
  page_->written.store(written_);
  return wake(page_->reader_sleeps);
}

Waited RingWriter::wait(std::size_t bytes, std::chrono::nanoseconds limit, Spin& spin) {
  return sleep(page_->writer_sleeps, limit, spin, [&] { return has_room(bytes); });
}

bool RingWriter::arm(std::size_t bytes) {
  page_->writer_sleeps.store(kBell);
  if (!has_room(bytes)) return true;
  disarm();
  return false;
}

// ---- reader

Result<std::optional<std::span<const std::byte>>> RingReader::peek() {
  if (written_ == read_) {
    const std::uint64_t written = page_->written.load();
    if (written == read_) return std::optional<std::span<const std::byte>>();
    const std::uint64_t restarted = page_->restarted.load(std::memory_order_relaxed);
    const std::uint64_t from = std::max(read_, restarted);
    if (from != read_ && from != read_ + capacity_ - offset(read_)) return fail(broken("restart"));
    if (written - from > capacity_ || written == from || written % 8 != 0) return fail(broken("writer's position"));
    read_ = from;
    written_ = written;
  }
  while (true) {
    const auto at = offset(read_), room = std::min(written_ - read_, capacity_ - at);
    const std::uint64_t length = word_at(data_ + at).load(std::memory_order_relaxed);
    if (length == kPad) {
      if (written_ - read_ <= capacity_ - at) return fail(broken("last record"));
      read_ += capacity_ - at;
      continue;
    }
    if (length > max_record(capacity_) || room_for(length) > room) return fail(broken("record's length"));
    next_ = read_ + room_for(length);
    return std::span<const std::byte>(data_ + at + 8, length);
  }
}

Wake RingReader::pop() {
  SHOAL_CHECK(next_ != read_, "the popped record was not read");
  read_ = next_;
  if (read_ != written_ && read_ - published_ < capacity_ / 8) return Wake::kNone;
  published_ = read_;
  page_->read.store(read_);
  return wake(page_->writer_sleeps);
}

Waited RingReader::wait(std::chrono::nanoseconds limit, Spin& spin) {
  return sleep(page_->reader_sleeps, limit, spin, [&] { return !empty(); });
}

bool RingReader::arm() {
  page_->reader_sleeps.store(kBell);
  if (empty()) return true;
  disarm();
  return false;
}

}  // namespace shoal::runtime
