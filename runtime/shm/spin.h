// Whether to look again and again for what another process is about to do, before sleeping: only while that has paid lately.
//
// A wake-up by the kernel costs tens of microseconds, on virtual machines hundreds, where a look at shared memory costs a tenth of one; and
// once both ends sleep between two words they go on so. But a look that finds nothing costs a core that others may need, perhaps the very
// process that is waited for. So after a moment the core is offered to others between looks (they take it where more processes talk with
// each other than there are cores), each run is bounded, and where most find nothing they become rare. Where somebody takes the core to
// compute it comes back after milliseconds, each time, while a sleeper is woken at once: then there are none for thirty times as long. Once
// alone tells nothing (a virtual machine has pauses of its own, and with a rest for each of them its wake-ups would be most of the time).
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

void yield_core();

// Of one thread at a time.
class Spin {
 public:
  struct Options {
    std::chrono::nanoseconds limit = std::chrono::microseconds(1000);  // of one run: more than a wake-up costs
    std::chrono::nanoseconds alone = std::chrono::microseconds(3);     // from its begin, before the core is offered
    std::chrono::nanoseconds lost = std::chrono::microseconds(500);    // who has the core for so long, twice in a row, computes
    int rest = 30;                                                     // times as long as it was lost there are no runs
    int max_credit = 16;                                               // a run that finds something by looking on earns one
    int miss_costs = 4;                                                // a run up to the limit that finds nothing
    std::uint32_t probe_every = 8;                                     // without credit one run in so many tries again whether it pays
    int looks = 16;                                                    // between two looks at the clock
    int looks_between = 4;                                             // between two offers of the core: others may have work for it
    void (*offer)() = &yield_core;
  };
  Spin() : Spin(Options()) {}
  explicit Spin(Options options) : options_(options), credit_(options.max_credit) {}

  // Whether the next run is worth it. Counts: ask once per sleep.
  bool worth();

  // Looks until look() is true (what it returns), the limit or `at_most` has passed, or the core was lost to somebody.
  template <class Look>
  bool run(Look&& look, std::chrono::nanoseconds at_most = std::chrono::nanoseconds::max()) {
    begin(at_most);
    do {
      for (int i = 0; i < looks_; ++i) {
        if (look()) return found();
        cpu_relax();
      }
    } while (goes_on());
    return look();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void begin(std::chrono::nanoseconds at_most);
  bool goes_on();
  bool lost(Clock::duration away, Clock::time_point now);
  bool found();

  Options options_;
  int credit_;
  std::uint32_t passed_ = 0;
  Clock::time_point not_before_{};
  bool was_lost_ = false;  // for long, when the core was offered last
  // of this run
  std::chrono::nanoseconds at_most_{};
  int looks_ = 0;
  std::uint32_t batches_ = 0;
  Clock::time_point begun_{};
  Clock::duration away_{};  // of it, for long
};

}  // namespace shoal::runtime
