// Amounts of resources and labels of nodes as words of the command line. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/protocol/cluster/resources.h"
#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// Reads words NAME=AMOUNT, and adds them to `amounts`.
Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts);
// Reads words NAME=VALUE.
Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words);
// Turns JSON such as {"slot": 1} into words NAME=AMOUNT.
Result<std::vector<std::string>> amounts_of_json(const std::string& text);
// Splits NAME=VALUE,NAME=VALUE.
std::vector<std::string> words_of_list(const std::string& text);
// These resources as options of a role: --resource NAME=AMOUNT, ..
std::vector<std::string> resource_words(const actors::Resources& resources);

}  // namespace shoal::scheduler::cli
