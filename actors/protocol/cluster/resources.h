// Amounts that a node has or an actor requests: CPU, GPU, memory (bytes) and resources with custom names.
//
// Amounts are whole multiples of 1/10000, so that fractions add up exactly.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/core/result.h"

namespace shoal::actors {

class Resources {
 public:
  static constexpr std::int64_t kUnit = 10'000;

  Resources() = default;
  // Makes resources of amounts in natural units. Returns InvalidArgument if one is negative, too large, not finite or finer than 1/10000.
  static Result<Resources> from_amounts(const std::map<std::string, double>& amounts);

  std::int64_t units(const std::string& name) const;
  void set_units(const std::string& name, std::int64_t units);  // 0 removes the name
  const std::map<std::string, std::int64_t>& all() const { return units_; }
  bool empty() const { return units_.empty(); }

  bool fits_in(const Resources& room) const;
  Resources& operator+=(const Resources& other);
  Resources& operator-=(const Resources& other);  // amounts may become negative, unless the caller checks fits_in() before
  bool operator==(const Resources&) const = default;

  std::string to_string() const;  // "CPU 1, GPU 0.5, memory 2 GiB", "nothing"
  // The amounts that do not fit into `room`, as text: "GPU 4 (has 0)".
  std::string missing_in(const Resources& room) const;

 private:
  std::map<std::string, std::int64_t> units_;
};

}  // namespace shoal::actors
