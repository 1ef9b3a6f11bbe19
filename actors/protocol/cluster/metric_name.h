// Names of metrics and labels: Prometheus's rules, and reserved names.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace shoal::actors {

inline constexpr std::string_view kUserMetrics = "shoal_user_";  // prefix of user metrics

inline bool is_metric_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto goes_on = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), goes_on);
}

// True for a label that a process may set. Prometheus reserves the names __.. and, in histograms, "le".
inline bool is_label_name(std::string_view name) { return is_metric_name(name) && !name.starts_with("__") && name != "le"; }

// True for a label that nodes and the head themselves add.
inline bool is_label_of_ours(std::string_view name) {
  constexpr std::string_view kOurs[] = {"host", "job_id", "node", "pid", "role", "worker"};
  return std::find(std::begin(kOurs), std::end(kOurs), name) != std::end(kOurs);
}

}  // namespace shoal::actors
