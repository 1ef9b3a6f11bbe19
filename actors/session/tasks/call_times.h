// The mean durations of calls by function. A pool decides by them how many tasks it sends to a worker at once.
#pragma once

#include <cstdint>
#include <map>

namespace shoal::actors {

class CallTimes {
 public:
  // The expected duration in seconds. A function that never ran counts as long.
  double expected(std::uint64_t function) const {
    const auto it = seconds_.find(function);
    return it == seconds_.end() ? 1e9 : it->second;
  }
  void took(std::uint64_t function, double seconds) {
    if (seconds_.size() > kMaxFunctions) seconds_.clear();  // the durations are soon learned again
    const auto [known, first] = seconds_.try_emplace(function, seconds);
    if (!first) known->second += 0.2 * (seconds - known->second);
  }

 private:
  static constexpr std::size_t kMaxFunctions = 10'000;
  std::map<std::uint64_t, double> seconds_;
};

}  // namespace shoal::actors
