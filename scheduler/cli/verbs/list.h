// list: rows of a cluster's state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

struct ListOptions {
  std::string what;
  std::vector<std::string> filters;  // KEY=VALUE, KEY!=VALUE
  std::optional<std::size_t> limit;  // 0: all; unset: 100 for rows that nodes report, else all
  bool detail = false;               // all fields
  std::string format;                // table, json, yaml
};
int list(const Common& common, const ListOptions& options);

}  // namespace shoal::scheduler::cli
