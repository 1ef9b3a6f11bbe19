// How many bytes a further host sends to the first one at once: as many as the link carries within a quarter of a second, so that live
// pages, which come first in each message, are never late.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace shoal::scheduler::cli {

class Pace {
 public:
  static constexpr std::size_t kLeast = 16 << 10, kMost = 512 << 10;
  static constexpr auto kInterval = std::chrono::milliseconds(250);  // from message to message: processes beat four times a second

  std::size_t budget() const { return budget_; }

  // The answer to a message of `bytes` came the time `after` later.
  void answered(std::size_t bytes, std::chrono::nanoseconds after) {
    const double intervals = std::max(std::chrono::duration<double>(after) / std::chrono::duration<double>(kInterval), 1e-6);
    const auto fitting = static_cast<double>(bytes) / intervals;
    // A small message says little about a fast link, and enough about a slow one.
    if (intervals < 1 && bytes < budget_ / 2) return;
    budget_ = static_cast<std::size_t>(std::clamp(fitting, static_cast<double>(kLeast), static_cast<double>(std::min(2 * budget_, kMost))));
  }

  // No answer came to a message: the link may be slower than it was.
  void lost() { budget_ = std::max(kLeast, budget_ / 4); }

 private:
  std::size_t budget_ = 64 << 10;
};

}  // namespace shoal::scheduler::cli
