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
// Keys that begin with none of the fields of these rows, of `what`: Ray's names become ours, others are InvalidArgument/Usage, as what is
// misspelt would keep none of the rows, or all.
Result<void> resolve(const nlohmann::json& rows, const std::string& what, std::vector<Filter>& filters);

std::string to_yaml(const nlohmann::json& value);

}  // namespace shoal::scheduler::cli
