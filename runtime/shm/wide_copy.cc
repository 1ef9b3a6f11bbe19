#include "runtime/shm/wide_copy.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {
constexpr std::size_t kPerThread = std::size_t{32} << 20;
constexpr std::size_t kMaxThreads = 4;
constexpr std::size_t kSourcePage = 4096;
constexpr std::size_t kPortion = std::size_t{1} << 20;  // new pages that are faulted in at once, few enough for the caches

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

// Blocks signals, so that threads made in its scope inherit the mask and never handle the user's signals.
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

std::size_t threads_for(std::size_t bytes) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min({bytes / kPerThread, kMaxThreads, cores});
}

// Calls work(to, from) for consecutive ranges of both, on several threads if they can be started.
template <typename Work>
void by_several(std::span<std::byte> to, std::span<const std::byte> from, const Work& work) {
  SHOAL_CHECK(to.size() == from.size(), "source and target have different sizes");
  const std::size_t wide = threads_for(from.size());
  if (wide < 2) return work(to, from);
  const std::size_t each = (from.size() / wide + kSourcePage - 1) / kSourcePage * kSourcePage;
  std::size_t begun = 0;
  std::vector<std::jthread> others;
  others.reserve(wide - 1);
  try {
    const NoSignals quiet;
    for (; others.size() + 1 < wide; begun += each) {
      others.emplace_back([&work, to = to.subspan(begun, each), from = from.subspan(begun, each)] { work(to, from); });
    }
  } catch (const std::system_error&) {
    // The process can have no more threads: the calling thread does the rest.
  }
  work(to.subspan(begun), from.subspan(begun));
}

// Faults in the pages of `bytes`. Returns 0 or errno; before Linux 5.14 it does nothing and returns 0: pages come with the first write.
int populate(std::span<std::byte> bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto first = begin / kSourcePage * kSourcePage;
  while (madvise(reinterpret_cast<void*>(first), begin + bytes.size() - first, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno == EINVAL ? 0 : errno;
  }
  return 0;
}
}  // namespace

// Copies with streaming stores, because wide copies do not fit into the caches. The memcpy of glibc 2.36 is three times slower for some
// relative page offsets of source and destination.
#if defined(__SSE2__)
namespace {
constexpr std::size_t kLine = 64;

void stream_line(std::byte* to, const std::byte* from) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}
}  // namespace

void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from) {
  // A core copies four pages at a time, a line of each in turn, and reads ahead in each: from one page alone it gets a fifth fewer bytes
  // per second, because prefetchers stop at a page's end (measured; glibc's memcpy does the same).
  constexpr std::size_t kPages = 4, kBlock = kPages * kSourcePage, kAhead = 4 * kLine;
  const std::size_t odd = (kLine - reinterpret_cast<std::uintptr_t>(to.data()) % kLine) % kLine;
  const std::size_t head = std::min(odd, from.size()), end = from.size() - (from.size() - head) % kLine;
  copy(to.first(head), from.first(head));
  std::size_t at = head;
  for (; end - at >= kBlock + kAhead; at += kBlock) {
    for (std::size_t line = at; line < at + kSourcePage; line += kLine) {
      for (std::size_t page = 0; page < kBlock; page += kSourcePage) {
        _mm_prefetch(reinterpret_cast<const char*>(from.data() + line + page + kAhead), _MM_HINT_T0);
        stream_line(to.data() + line + page, from.data() + line + page);
      }
    }
  }
  for (; at < end; at += kLine) stream_line(to.data() + at, from.data() + at);
  _mm_sfence();
  copy(to.subspan(end), from.subspan(end));
}
#else
void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from) { copy(to, from); }
#endif

bool is_wide(std::size_t bytes) { return threads_for(bytes) > 1; }

void wide_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  by_several(to, from, is_wide(from.size()) ? copy_past_caches : copy);
}

Result<void> wide_fill(std::span<std::byte> to, std::span<const std::byte> from) {
  std::atomic<int> failed = 0;
  by_several(to, from, [&failed](std::span<std::byte> into, std::span<const std::byte> left) {
    while (!left.empty() && failed == 0) {
      const std::size_t n = std::min(left.size(), kPortion);
      if (const int error = populate(into.first(n)); error != 0) return failed.store(error);
      copy(into.first(n), left.first(n));
      into = into.subspan(n);
      left = left.subspan(n);
    }
  });
  if (failed == 0) return {};
  return fail(resource_exhausted("no memory for " + std::to_string(to.size()) + " bytes that are shared: " + std::strerror(failed)));
}

}  // namespace shoal::runtime
