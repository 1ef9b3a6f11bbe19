// Whether to look again and again for what another process is about to do, before sleeping: only while that has paid lately.
//
// A wake-up by the kernel costs tens of microseconds where a look at shared memory costs a tenth of one. But a look that finds nothing
// costs a core that others may need, perhaps the very process that is waited for. So each run is bounded, runs that found nothing make the
// next ones rare, and one that lost its core meanwhile to somebody else does so at once. (Giving the core away between looks is no way out:
// where others compute it comes back after milliseconds, to a sleeper that is woken at once.)
#pragma once

#include <chrono>
#include <cstdint>

namespace shoal::runtime {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Spin {
 public:
  struct Options {
    std::chrono::nanoseconds limit = std::chrono::microseconds(200);  // of one run: more than a wake-up, up to 100 us on virtual machines
    std::chrono::nanoseconds preempted = std::chrono::microseconds(20);  // longer than a few looks ever take
    int max_credit = 8;                                                  // a run that finds something earns one
    int miss_costs = 4;                                                  // a run that finds nothing
    int probe_every = 32;                                                // without credit one run in so many tries again whether it pays
    int looks = 16;                                                      // between two looks at the clock
  };
  Spin() : Spin(Options()) {}
  explicit Spin(Options options) : options_(options), credit_(options.max_credit) {}

  // Whether the next run is worth it. Counts: ask once per sleep.
  bool worth() { return credit_ > 0 || ++passed_ % options_.probe_every == 0; }

  // Looks until look() is true or the limit has passed, and returns which.
  template <class Look>
  bool run(Look&& look) {
    auto before = std::chrono::steady_clock::now();
    const auto end = before + options_.limit;
    while (true) {
      for (int i = 0; i < options_.looks; ++i) {
        if (look()) {
          credit_ = credit_ < options_.max_credit ? credit_ + 1 : credit_;
          return true;
        }
        cpu_relax();
      }
      const auto now = std::chrono::steady_clock::now();
      if (now - before > options_.preempted) {
        credit_ = 0;
        return look();
      }
      before = now;
      if (now >= end) break;
    }
    credit_ = credit_ > options_.miss_costs ? credit_ - options_.miss_costs : 0;
    return false;
  }

 private:
  Options options_;
  int credit_;
  std::uint32_t passed_ = 0;
};

}  // namespace shoal::runtime
