// config show: the settings, their values now and where these come from.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/configuration/configuration.h"
#include "scheduler/cli/launch/secrets.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

struct ConfigOptions {
  bool origin = false;
};

struct ShownSetting {
  std::string name;
  std::string value;   // "" if it has none
  std::string origin;  // option, variable, file or default
  std::string file;
};

// `given`: the values of options, by the variable in whose place they count.
ShownSetting shown_setting(const Setting& setting, const Configuration& files, const std::map<std::string, std::string>& given) {
  const std::string name(setting.name);
  if (const auto option = given.find(name); option != given.end()) return {name, option->second, "option", ""};
  if (const auto value = files.variables.find(name); value != files.variables.end())
    return {name, is_secret(name) ? "(secret)" : value->second, "variable", ""};
  for (const auto& key : files.settings) {
    if (key.verb.empty() && key.name == name) return {name, key.values.front(), "file", key.file};
  }
  return {name, std::string(setting.fallback), "default", ""};
}

std::vector<ShownSetting> shown_settings(const CommandLine& line, const std::map<std::string, std::string>& given) {
  std::vector<ShownSetting> out;
  const Configuration& files = line.configuration();
  for (const auto& setting : all_settings()) {
    out.push_back(shown_setting(setting, files, given));
    out.back().value = without_secrets(out.back().value);
  }
  for (const auto& key : files.settings) {
    if (key.verb.empty()) continue;
    std::vector<std::string> values = names_secret(key.name) ? std::vector<std::string>{"(secret)"} : key.values;
    for (auto& value : values) value = without_secrets(value);
    out.push_back(
        {fmt::format("[{}] {}", fmt::join(key.verb, "."), key.name), fmt::format("{}", fmt::join(values, ", ")), "file", key.file});
  }
  return out;
}

int config_show(const Common& common, const CommandLine& line, const std::map<std::string, std::string>& given,
                const ConfigOptions& options) {
  const auto settings = shown_settings(line, given);
  if (common.json) {
    nlohmann::json out = {{"schema", "shoal.config/1"}, {"files", line.configuration().files}, {"settings", nlohmann::json::array()}};
    for (const auto& s : settings) {
      out["settings"].push_back({{"name", s.name},
                                 {"value", s.value.empty() ? nlohmann::json() : nlohmann::json(s.value)},
                                 {"origin", s.origin},
                                 {"file", s.file.empty() ? nlohmann::json() : nlohmann::json(s.file)}});
    }
    print_json(out);
    return kOk;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& s : settings) {
    rows.push_back({s.name, s.value.empty() ? "-" : s.value});
    if (options.origin) rows.back().push_back(s.file.empty() ? s.origin : s.file);
  }
  std::vector<std::string> header = {"SETTING", "VALUE"};
  if (options.origin) header.emplace_back("ORIGIN");
  print_table(header, rows);
  return kOk;
}

}  // namespace

void add_config(CommandLine& line) {
  auto& options = line.own<ConfigOptions>();
  auto* verb = line.add_verb("show", "Print each setting and its value now", line.add_group("config", "Settings: variables and files"));
  verb->add_flag("--origin", options.origin, "Print also where each value comes from: option, variable, file or default");
  line.on_run(verb, [&line, &options, verb](const Common& common) {
    std::map<std::string, std::string> given;
    if (verb->count("--address") > 0) given["SHOAL_ADDRESS"] = common.target.address;
    if (verb->count("--token-file") > 0) given["SHOAL_TOKEN_FILE"] = common.target.token_file;
    if (verb->count("--ca-fingerprint") > 0) given["SHOAL_CA_FINGERPRINT"] = common.target.fingerprint;
    return config_show(common, line, given, options);
  });
}

}  // namespace shoal::scheduler::cli
