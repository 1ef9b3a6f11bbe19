#include "scheduler/cli/amounts.h"

#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal::scheduler::cli {

using nlohmann::json;

Result<actors::Resources> parse_amounts(const std::vector<std::string>& words, std::map<std::string, double> amounts) {
  for (const auto& word : words) {
    const auto equals = word.find('=');
    char* end = nullptr;
    const double amount = equals == std::string::npos ? 0 : std::strtod(word.c_str() + equals + 1, &end);
    if (equals == 0 || equals == std::string::npos || end == word.c_str() + equals + 1 || *end != 0) {
      return fail(invalid_argument("'" + word + "' is not NAME=AMOUNT"));
    }
    amounts[word.substr(0, equals)] = amount;
  }
  return actors::Resources::from_amounts(amounts);
}

Result<std::map<std::string, std::string>> parse_labels(const std::vector<std::string>& words) {
  std::map<std::string, std::string> out;
  for (const auto& word : words) {
    const auto equals = word.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == word.size()) {
      return fail(invalid_argument("'" + word + "' is not NAME=VALUE"));
    }
    out[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return out;
}

Result<std::vector<std::string>> amounts_of_json(const std::string& text) {
  const json given = json::parse(text, nullptr, false);
  std::vector<std::string> out;
  bool amounts = given.is_object();
  for (auto it = given.begin(); amounts && it != given.end(); ++it) {
    amounts = it->is_number() && it->get<double>() >= 0;
    if (amounts) out.push_back(fmt::format("{}={}", it.key(), it->get<double>()));
  }
  if (!amounts)
    return fail(invalid_argument("'" + text + "' is no JSON object of amounts by name").with_hint(R"(--resources '{"slot": 1}')"));
  return out;
}

std::vector<std::string> words_of_list(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) out.push_back(word);
  return out;
}

std::vector<std::string> resource_words(const actors::Resources& resources) {
  std::vector<std::string> out;
  for (const auto& [name, units] : resources.all()) {
    out.push_back("--resource");
    out.push_back(fmt::format("{}={}", name, static_cast<double>(units) / actors::Resources::kUnit));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
