// The prefetch of a step machine: boundaries that a step will pass, and the units to unshard ahead at each. A Plan makes it from a traced
// step.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::fsdp {

// A point of the program: a unit's forward or backward begins or ends.
struct Boundary {
  bool backward = false;
  bool begin = false;
  std::int32_t unit = 0;
  bool operator==(const Boundary&) const = default;
};

// The schedule of one model, which names units by their numbers in the model.
struct Schedule {
  struct Unshard {
    std::int32_t unit = 0;
    bool backward = false;  // true: the unshard serves the unit's backward
  };
  std::vector<Boundary> boundaries;
  std::vector<std::vector<Unshard>> ahead;  // by boundary
};

}  // namespace shoal::fsdp
