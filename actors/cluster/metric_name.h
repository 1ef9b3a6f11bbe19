// What Prometheus takes for a name, of a metric or a label.
#pragma once

#include <algorithm>
#include <string_view>

namespace shoal::actors {

inline bool is_metric_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto goes_on = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), goes_on);
}

}  // namespace shoal::actors
