// Amounts of resources and labels of nodes as words of the command line. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/cluster/resources.h"
#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// Words NAME=AMOUNT, on top of `amounts`.
Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts);
// Words NAME=VALUE.
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);
// {"slot": 1} as words NAME=AMOUNT.
Result<std::vector<std::string>> amounts_of_json(const std::string& text);
// Splits NAME=VALUE,NAME=VALUE.
std::vector<std::string> words_of_list(const std::string& text);
// Options of a role: --resource NAME=AMOUNT, ..
std::vector<std::string> resource_words(const actors::Resources& resources);

}  // namespace shoal::scheduler::cli
