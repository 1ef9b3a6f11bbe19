// Which rows are shown: conditions on their fields; and rows as YAML. Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// KEY=VALUE or KEY!=VALUE; a key may lead into a row: labels.zone=a. Case is of no account in values.
struct Filter {
  std::string key, value;
  bool negated = false;
};
Result<Filter> parse_filter(const std::string& text);
bool matches(const nlohmann::json& row, const Filter& filter);
// InvalidArgument/Usage for a key that begins with none of the fields of these rows: what is misspelt would keep none, or all, of them.
Result<void> check(const nlohmann::json& rows, const std::vector<Filter>& filters);

std::string to_yaml(const nlohmann::json& value);

}  // namespace shoal::scheduler::cli
