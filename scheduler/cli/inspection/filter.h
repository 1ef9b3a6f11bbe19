// Conditions on the fields of rows, and rows as YAML. Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// KEY=VALUE or KEY!=VALUE; a key may be a path into a row: labels.zone=a. Values compare case-insensitively.
struct Filter {
  std::string key, value;
  bool negated = false;
};
Result<Filter> parse_filter(const std::string& text);
bool matches(const nlohmann::json& row, const Filter& filter);
// Replaces keys that are Ray's names of fields by Shoal's, for these rows of kind `what`. Returns InvalidArgument/Usage for an unknown key,
// because a misspelt filter would keep no row, or every row.
Result<void> resolve(const nlohmann::json& rows, const std::string& what, std::vector<Filter>& filters);

std::string to_yaml(const nlohmann::json& value);

}  // namespace shoal::scheduler::cli
