// Decides whether to poll for another process's next step before sleeping: only while polling has paid lately.
//
// A run is a series of looks at shared memory. A wake-up by the kernel takes tens of microseconds, on virtual machines hundreds. A look
// takes a tenth of a microsecond. Once both ends sleep between two messages, they stay in that pattern. But a fruitless look uses a core
// that others may need, perhaps the awaited process. So each run is bounded. After a moment it offers the core to other threads between
// looks (sched_yield), which helps where more processes communicate than there are cores. Runs become rare where most find nothing.
//
// If another thread computes on the offered core, the polling thread gets it back only after milliseconds, but a sleeping thread is woken
// at once. Such an absence is called a loss of the core. After two losses in a row, no runs take place for thirty times as long. A single
// loss has no effect, because it may be a pause of the virtual machine: if each pause stopped the runs, most waits would end in a wake-up.
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

// Used by one thread at a time.
class Spin {
 public:
  struct Options {
    std::chrono::nanoseconds limit = std::chrono::microseconds(1000);     // length of a run; more than the cost of a wake-up
    std::chrono::nanoseconds alone = std::chrono::microseconds(3);        // from the start of a run to the first offer of the core
    std::chrono::nanoseconds preempted = std::chrono::microseconds(500);  // an absence from the core that counts as a loss
    int backoff = 30;               // pause after two losses in a row, as a multiple of the second one
    int max_credit = 16;            // largest credit, without which runs are rare; a run that finds something after its first polls earns 1
    int miss_costs = 4;             // credit that a run costs which finds nothing up to its limit
    std::uint32_t probe_every = 8;  // without credit, one run in this many tries again
    int polls_per_check = 16;       // polls per check of the clock
    int polls_per_offer = 4;        // polls per offer of the core, after the first offer
    void (*yield_to_others)() = &yield_core;
  };
  Spin() : Spin(Options()) {}
  explicit Spin(Options options) : options_(options), credit_(options.max_credit) {}

  // Returns true if the next run is worthwhile. Call it once per sleep, because it counts calls.
  bool should_spin();

  // Calls poll() until it returns true, the limit or `at_most` has passed, or the core was lost twice. Returns the last result.
  template <class Poll>
  bool run(Poll&& poll, std::chrono::nanoseconds at_most = std::chrono::nanoseconds::max()) {
    begin(at_most);
    do {
      for (int i = 0; i < batch_; ++i) {
        if (poll()) return found();
        cpu_relax();
      }
    } while (goes_on());
    return poll();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void begin(std::chrono::nanoseconds at_most);
  bool goes_on();
  bool preempted(Clock::duration away, Clock::time_point now);
  bool found();

  Options options_;
  int credit_;
  std::uint32_t passed_ = 0;
  Clock::time_point not_before_{};
  bool was_preempted_ = false;  // true if the last offer of the core was a loss
  // State of the current run.
  std::chrono::nanoseconds at_most_{};
  int batch_ = 0;
  std::uint32_t batches_ = 0;
  Clock::time_point begun_{};
  Clock::duration away_{};  // total time of the run's losses
};

}  // namespace shoal::runtime
