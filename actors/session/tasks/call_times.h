// The mean durations of functions' calls, from which a pool decides how many it sends to a worker at once.
#pragma once

#include <cstdint>
#include <map>

namespace shoal::actors {

class CallTimes {
 public:
  // In seconds. Unknown functions count as long.
  double expected(std::uint64_t function) const {
    const auto it = seconds_.find(function);
    return it == seconds_.end() ? 1e9 : it->second;
  }
  void took(std::uint64_t function, double seconds) {
    if (seconds_.size() > kMaxFunctions) seconds_.clear();  // relearned quickly
    const auto [known, first] = seconds_.try_emplace(function, seconds);
    if (!first) known->second += 0.2 * (seconds - known->second);
  }

 private:
  static constexpr std::size_t kMaxFunctions = 10'000;
  std::map<std::uint64_t, double> seconds_;
};

}  // namespace shoal::actors
