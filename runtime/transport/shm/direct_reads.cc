#include "runtime/transport/shm/direct_reads.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

std::uint64_t random_token() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device() | 1;  // never 0
}

}  // namespace

DirectReads::DirectReads(ShmMemory memory, int rank) : memory_(memory), rank_(rank), token_(random_token()) {}

void DirectReads::join() {
  auto& own = memory_.rank(rank_);
  own.pid.store(static_cast<std::uint64_t>(getpid()), std::memory_order_relaxed);
  own.token.store(token_, std::memory_order_relaxed);
  own.token_at.store(reinterpret_cast<std::uintptr_t>(&token_), std::memory_order_relaxed);
}

void DirectReads::try_once() {
  auto& outcome = memory_.rank(rank_).direct;
  if (outcome.load(std::memory_order_relaxed) != kUntried) return;
  outcome.store(reads_all_tokens() ? kWorks : kFails, std::memory_order_release);
}

bool DirectReads::reads_all_tokens() const {
  for (int r = 0; r < memory_.shape().world_size; ++r) {
    const auto& words = memory_.rank(r);
    std::uint64_t found = 0;
    const auto read_whole = read(r, words.token_at.load(std::memory_order_relaxed), std::as_writable_bytes(std::span(&found, 1)));
    if (!read_whole || !*read_whole || found != words.token.load(std::memory_order_relaxed)) return false;
  }
  return true;
}

std::optional<bool> DirectReads::possible() const {
  bool all = true;
  for (int r = 0; r < memory_.shape().world_size; ++r) {
    const std::uint64_t outcome = memory_.rank(r).direct.load(std::memory_order_acquire);
    if (outcome == kUntried) return std::nullopt;
    all &= outcome == kWorks;
  }
  return all;
}

int DirectReads::first_untried() const {
  for (int r = 0; r < memory_.shape().world_size; ++r) {
    if (memory_.rank(r).direct.load(std::memory_order_acquire) == kUntried) return r;
  }
  return -1;
}

Result<bool> DirectReads::read(int rank, std::uint64_t address, std::span<std::byte> out) const {
  const auto pid = static_cast<pid_t>(memory_.rank(rank).pid.load(std::memory_order_relaxed));
  while (!out.empty()) {
    const iovec to{out.data(), out.size()};
    const iovec from{reinterpret_cast<void*>(address), out.size()};  // NOLINT(performance-no-int-to-ptr): of the other process
    const ssize_t n = process_vm_readv(pid, &to, 1, &from, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (n < 0 && (errno == ESRCH || errno == EFAULT))) return false;
    if (n < 0) return fail(from_errno(errno, fmt::format("cannot read the memory of rank {}", rank)));
    out = out.subspan(static_cast<std::size_t>(n));
    address += static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace shoal::runtime
