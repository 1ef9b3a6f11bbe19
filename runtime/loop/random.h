// Random numbers behind an interface: from the kernel, or a seeded sequence in the simulated world.
#pragma once

#include <cstdint>
#include <memory>
#include <random>

namespace shoal::runtime {

class Random {
 public:
  virtual ~Random() = default;
  virtual std::uint64_t next() = 0;

  // Returns a strong identifier (id.h), never 0.
  template <class IdType>
  IdType id() {
    std::uint64_t value = 0;
    while (value == 0) value = next();
    return IdType{value};
  }
  // Returns 0 to bound - 1, for jitter and random choice; the bias is less than bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
};

std::unique_ptr<Random> make_real_random();  // getrandom(2), also good for secrets

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t next() override { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace shoal::runtime
