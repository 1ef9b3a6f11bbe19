#include "scheduler/cli/configuration/configuration.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "scheduler/cli/suggestion/suggestion.h"

namespace shoal::scheduler::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "SHOAL_";

std::string key_of(std::string_view variable) {
  std::string out(variable.substr(kPrefix.size()));
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

Error refused_key(const Configured& key, const std::string& why) {
  return invalid_argument(fmt::format("{}: the key '{}' {}", key.file, key.name, why)).with_reason("Usage");
}

Result<void> check_variable(Configured& key) {
  const auto settings = all_settings();
  const auto found = std::ranges::find_if(settings, [&](const Setting& s) { return key_of(s.name) == key.name; });
  if (found == settings.end()) {
    std::vector<std::string> known;
    for (const auto& s : settings) {
      if (!is_secret(s.name) && s.name != "SHOAL_CONFIG") known.push_back(key_of(s.name));
    }
    return fail(unknown_key(key, known));
  }
  if (is_secret(found->name)) {
    return fail(refused_key(key, "is a secret, which stands in no such file").with_hint("token_file names the file that has the token"));
  }
  if (found->name == "SHOAL_CONFIG") return fail(refused_key(key, "names such files, and stands in none").with_hint("set SHOAL_CONFIG"));
  if (key.values.size() != 1) return fail(refused_key(key, "has one value, and stands there once").with_hint(key.name + " = \"..\""));
  std::string& value = key.values.front();
  if (value == "true" || value == "false") value = value == "true" ? "1" : "0";
  key.name = found->name;
  return {};
}

bool same_key(const Configured& a, const Configured& b) { return a.name == b.name && a.verb == b.verb; }

// Why the user does not trust this file's settings; "" if there is no reason.
std::string distrust(const std::string& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return "";
  if (info.st_uid != geteuid() && info.st_uid != 0) return fmt::format("it belongs to another user (uid {})", info.st_uid);
  return (info.st_mode & S_IWOTH) != 0 ? "other users can write it" : "";
}

Result<void> add_file(Configuration& out, const std::string& file) {
  if (const std::string why = distrust(file); !why.empty()) {
    out.warnings.push_back(fmt::format("{} is left out: {} (SHOAL_CONFIG=none reads no file)", file, why));
    return {};
  }
  std::ifstream in(file);
  if (!in) return fail(invalid_argument(file + " cannot be read").with_reason("Usage").with_hint("SHOAL_CONFIG=none reads no file"));
  SHOAL_TRY(auto keys, parse_configuration({std::istreambuf_iterator<char>(in), {}}, file));
  for (auto& key : keys) {
    const bool known = std::ranges::any_of(out.settings, [&](const Configured& other) { return same_key(key, other); });
    if (!known) out.settings.push_back(std::move(key));
  }
  out.files.push_back(file);
  return {};
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

}  // namespace

bool is_secret(std::string_view variable) { return variable == "SHOAL_TOKEN"; }

Error unknown_key(const Configured& key, const std::vector<std::string>& known) {
  const std::string meant = nearest(key.name, known);
  const std::string where = key.verb.empty() ? "" : fmt::format(" in [{}]", fmt::join(key.verb, "."));
  return refused_key(key, "is unknown" + where)
      .with_hint(meant.empty() ? std::string("docs/configuration.md lists the keys") : "did you mean `" + meant + "`?");
}

Result<std::vector<Configured>> parse_configuration(const std::string& text, const std::string& file) {
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream in(text);
    items = CLI::ConfigTOML().from_config(in);
  } catch (const CLI::Error& error) {
    return fail(invalid_argument(file + " cannot be read: " + error.what()).with_reason("Usage"));
  }
  std::vector<Configured> out;
  for (auto& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11 marks the begin and the end of a section
    Configured key{std::move(item.parents), std::move(item.name), std::move(item.inputs), file};
    for (const auto& value : key.values) {
      if (value.starts_with('"') || value.starts_with('\'')) {
        return fail(refused_key(key, "has a text with a #, or without its closing quote").with_hint("write the text without #"));
      }
    }
    if (key.verb.empty()) SHOAL_OK(check_variable(key));
    if (std::ranges::any_of(out, [&](const Configured& other) { return same_key(key, other); }))
      return fail(refused_key(key, "stands there twice").with_hint("keep one of them"));
    out.push_back(std::move(key));
  }
  return out;
}

Result<Configuration> find_configuration(const Variable& variable, const std::string& folder) {
  Configuration out;
  for (const auto& setting : all_settings()) {
    if (const auto value = variable(setting.name); !value.empty()) out.variables[std::string(setting.name)] = value;
  }
  if (const std::string only = variable("SHOAL_CONFIG"); !only.empty()) {
    if (only != "none") SHOAL_OK(add_file(out, only));
    return out;
  }
  for (fs::path at = folder; !at.empty(); at = at.parent_path()) {
    if (is_file(at / "shoal.toml")) {
      SHOAL_OK(add_file(out, at / "shoal.toml"));
      break;
    }
    if (at == at.parent_path()) break;
  }
  const std::string base = variable("XDG_CONFIG_HOME"), home = variable("HOME");
  const fs::path of_user = base.empty() ? fs::path(home) / ".config" : fs::path(base);
  if ((!base.empty() || !home.empty()) && is_file(of_user / "shoal" / "config.toml")) {
    SHOAL_OK(add_file(out, of_user / "shoal" / "config.toml"));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
