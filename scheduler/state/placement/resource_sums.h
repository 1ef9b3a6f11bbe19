// Sums of resources over many nodes. They are exact, also where a sum exceeds the range of one node's amounts: a thousand nodes with 1 TB
// of memory each do. So what was added can be subtracted again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "actors/protocol/cluster/resources.h"

namespace shoal::scheduler {

class ResourceSums {
 public:
  using Units = __int128;

  Units units(const std::string& name) const {
    const auto it = units_.find(name);
    return it == units_.end() ? 0 : it->second;
  }
  const std::map<std::string, Units>& all() const { return units_; }
  bool empty() const { return units_.empty(); }

  ResourceSums& operator+=(const actors::Resources& more) { return add(more, 1); }
  ResourceSums& operator-=(const actors::Resources& less) { return add(less, -1); }
  bool operator==(const ResourceSums&) const = default;

 private:
  ResourceSums& add(const actors::Resources& other, int sign) {
    for (const auto& [name, units] : other.all()) {
      const auto it = units_.try_emplace(name, 0).first;
      it->second += Units{sign} * units;
      if (it->second == 0) units_.erase(it);
    }
    return *this;
  }

  std::map<std::string, Units> units_;  // without zeros
};

// The sum `part` as amounts of a message, which have 64 bits. If `total` exceeds that range, both sums are reduced by the excess, so that
// the difference between them stays exact.
inline actors::Resources cut(const ResourceSums& part, const ResourceSums& total) {
  actors::Resources out;
  for (const auto& [name, units] : part.all()) {
    const ResourceSums::Units beyond = std::max<ResourceSums::Units>(total.units(name) - INT64_MAX, 0);
    out.set_units(name, static_cast<std::int64_t>(std::max<ResourceSums::Units>(units - beyond, 0)));
  }
  return out;
}

}  // namespace shoal::scheduler
