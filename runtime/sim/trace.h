// A hash over the events of a simulated world, to detect any difference between two runs of a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/loop/clock.h"
#include "runtime/loop/random.h"

namespace shoal::runtime {

class Trace {
 public:
  void add(std::uint64_t word) { hash_ = (hash_ ^ word) * kPrime ^ (hash_ >> 29); }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (const std::byte b : bytes) add(static_cast<std::uint64_t>(b));
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void event() { ++num_events_; }

  std::uint64_t hash() const { return hash_; }
  std::uint64_t num_events() const { return num_events_; }

 private:
  static constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15;
  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::uint64_t num_events_ = 0;
};

// A seeded sequence that stores its last number.
class TracedRandom final : public Random {
 public:
  explicit TracedRandom(std::uint64_t seed) : random_(seed) {}
  std::uint64_t next() override { return last_ = random_.next(); }
  std::uint64_t last() const { return last_; }

 private:
  SeededRandom random_;
  std::uint64_t last_ = 0;
};

inline bool happens(Random& random, std::uint32_t per_mille) { return random.below(1000) < per_mille; }
// Returns a random duration from `least` to `most`.
inline Duration between(Random& random, Duration least, Duration most) {
  if (most <= least) return least;
  return least + Duration(static_cast<Duration::rep>(random.below(static_cast<std::uint64_t>((most - least).count()) + 1)));
}

}  // namespace shoal::runtime
