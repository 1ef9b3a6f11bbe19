#include "runtime/shm/wide_copy.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {
constexpr std::size_t kPerThread = std::size_t{32} << 20;
constexpr std::size_t kMaxThreads = 4;
constexpr std::size_t kPage = 4096;

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

// Signals are for the threads that expect them; a new thread has its maker's mask.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};
}  // namespace

void wide_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  SHOAL_CHECK(to.size() == from.size(), "a copy into as many bytes");
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t wide = std::min({from.size() / kPerThread, kMaxThreads, cores});
  if (wide < 2) return copy(to, from);
  const std::size_t each = (from.size() / wide + kPage - 1) / kPage * kPage;
  std::size_t begun = 0;
  std::vector<std::jthread> others;
  others.reserve(wide - 1);
  try {
    const NoSignals quiet;
    for (; others.size() + 1 < wide; begun += each) {
      others.emplace_back([to = to.subspan(begun, each), from = from.subspan(begun, each)] { copy(to, from); });
    }
  } catch (const std::system_error&) {
    // no thread to be had: the rest is copied here
  }
  copy(to.subspan(begun), from.subspan(begun));
}

}  // namespace shoal::runtime
