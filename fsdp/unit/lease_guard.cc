#include "fsdp/unit/lease_guard.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace shoal::fsdp {

namespace {

struct Range {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<std::size_t> bytes{0};
  std::atomic<std::uint64_t> step{0};
  char what[232] = {};
};

Range g_ranges[GuardedRange::kMaxRanges];
struct sigaction g_before;

// Async-signal-safe: no allocation, no locks.
void on_fault(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (auto& r : g_ranges) {
    const std::byte* begin = r.begin.load();
    if (begin == nullptr || at < begin || at >= begin + r.bytes.load()) continue;
    char text[400];
    const int n =
        std::snprintf(text, sizeof text,
                      "shoal: error[InvalidArgument/NoLease]: parameters of %s were touched without a lease, after step %llu\n"
                      "  hint: read them inside forward or backward, or call unshard() first; write them with shoal.fsdp.write(model)\n",
                      r.what, static_cast<unsigned long long>(r.step.load()));
    [[maybe_unused]] const auto written = write(2, text, static_cast<std::size_t>(std::min(n, 399)));
    break;
  }
  // Restores the previous handler, usually the default: the process ends with the signal.
  sigaction(signal, &g_before, nullptr);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &g_before);
  });
}

}  // namespace

GuardedRange::GuardedRange(const std::byte* begin, std::size_t bytes, const std::string& what) : slot_(kMaxRanges) {
  install();
  for (std::size_t i = 0; i < kMaxRanges; ++i) {
    std::size_t free = 0;
    if (!g_ranges[i].bytes.compare_exchange_strong(free, bytes)) continue;
    std::snprintf(g_ranges[i].what, sizeof g_ranges[i].what, "%s", what.c_str());
    g_ranges[i].begin.store(begin);
    slot_ = i;
    return;
  }
}

GuardedRange::~GuardedRange() {
  if (slot_ == kMaxRanges) return;
  g_ranges[slot_].begin.store(nullptr);
  g_ranges[slot_].bytes.store(0);
}

void GuardedRange::set_step(std::uint64_t step) {
  if (slot_ != kMaxRanges) g_ranges[slot_].step.store(step);
}

}  // namespace shoal::fsdp
