#include "scheduler/cli/configuration/configuration.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "runtime/core/fd.h"
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

// True for a variable that a working directory's file must not set, since that may come with somebody's sources: one that chooses a
// program, a cluster, a secret or a file to write.
bool is_of_user_alone(const std::string& variable) {
  const auto names = {"SHOAL_ADDRESS", "SHOAL_BINARY", "SHOAL_CA_FINGERPRINT", "SHOAL_HOME",
                      "SHOAL_PYTHON",  "SHOAL_TOKEN",  "SHOAL_TOKEN_FILE",     "SHOAL_RUN_FOLDER"};
  return std::ranges::find(names, variable) != names.end() || variable.starts_with("SHOAL_STORE_") || variable.ends_with("_LIBRARY");
}

// Variables by which shells, interpreters, the loader and libraries choose what they execute, and which files and hosts they trust.
bool chooses_program(const std::string& variable) {
  const auto of_programs = {"PATH", "ENV", "BASH_ENV", "SHELL", "SHELLOPTS", "BASHOPTS", "IFS", "PS4", "CDPATH", "CC", "CXX"};
  const auto of_files = {"HOME", "GCONV_PATH", "LOCPATH", "NLSPATH", "CUDA_HOME", "PERLLIB", "NODE_PATH", "NODE_OPTIONS"};
  const auto of_trust = {"HOSTALIASES", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "KUBECONFIG", "SHOAL_CONFIG", "SHOAL_RUNTIME_ENV"};
  const auto begins = {"LD_", "PYTHON", "XDG_", "BASH_FUNC_", "GIT_", "SSH_", "SSL_CERT_", "OPENSSL_", "PERL5", "RUBY", "PIP_", "UV_"};
  const auto ends = {"_PROXY", "_proxy", "_INJECTION64_PATH", "_PLUGIN"};
  const auto is_in = [&](const auto& names) { return std::ranges::find(names, variable) != names.end(); };
  return is_in(of_programs) || is_in(of_files) || is_in(of_trust) || is_of_user_alone(variable) ||
         std::ranges::any_of(begins, [&](const char* part) { return variable.starts_with(part); }) ||
         std::ranges::any_of(ends, [&](const char* part) { return variable.ends_with(part); });
}

// The same for a key in a section: options that choose what is executed, which hosts get the caller's variables or reach a cluster, or
// which file or folder is replaced.
bool is_of_user_alone(const Configured& key) {
  if (key.verb.empty()) return is_of_user_alone(key.name);
  const auto names = {"shoal",  "image",  "hosts",      "master-addr",    "runtime-env", "runtime-env-json",
                      "export", "output", "run-folder", "dashboard-host", "authority",   "object-spilling-directory"};
  if (std::ranges::find(names, key.name) != names.end() || key.name == "store" || key.name.starts_with("store-")) return true;
  return key.name == "env" && std::ranges::any_of(key.values, [](const auto& v) { return chooses_program(v.substr(0, v.find('='))); });
}

Error cannot_be_read(const std::string& file, int why) {
  return invalid_argument(fmt::format("{} cannot be read: {}", file, std::generic_category().message(why)))
      .with_reason("Usage")
      .with_hint("SHOAL_CONFIG=none reads no file");
}

Result<std::string> text_of(const Fd& in, const std::string& file) {
  std::string out;
  char part[4096];
  for (;;) {
    const ssize_t size = read(in.get(), part, sizeof part);
    if (size == 0) return out;
    if (size < 0 && errno != EINTR) return fail(cannot_be_read(file, errno));
    if (size > 0) out.append(part, static_cast<std::size_t>(size));
  }
}

enum class Place { kOfUser, kOfFolder };

Result<void> add_file(Configuration& out, const std::string& file, Place place) {
  const auto leave_out = [&](const std::string& why) -> Result<void> {
    out.warnings.push_back(fmt::format("{} is left out: {} (SHOAL_CONFIG=none reads no file)", file, why));
    return {};
  };
  // Users may link their own file to one of another folder. In a working directory a link is refused: it could name any file of the user.
  const int links = place == Place::kOfFolder ? O_NOFOLLOW : 0;
  const Fd in(open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | links));
  if (!in && errno == ELOOP && links != 0) return leave_out("it is a link");
  struct stat info {};
  if (!in || fstat(in.get(), &info) != 0) return fail(cannot_be_read(file, errno));
  if (const std::string why = distrust(info, geteuid(), getegid()); !why.empty()) return leave_out(why);
  SHOAL_TRY(const std::string text, text_of(in, file));
  SHOAL_TRY(auto keys, parse_configuration(text, file));
  for (auto& key : keys) {
    if (place == Place::kOfFolder && is_of_user_alone(key)) {
      if (key.verb.empty()) key.name = key_of(key.name);
      const std::string where = key.verb.empty() ? "" : fmt::format("in [{}] ", fmt::join(key.verb, "."));
      return fail(
          refused_key(key, where + "chooses a program, a cluster or a file to write, so that it stands in no file of a working directory")
              .with_hint("move it to ~/.config/shoal/config.toml, or name this file by SHOAL_CONFIG"));
    }
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

std::string distrust(const struct stat& info, uid_t user, gid_t group) {
  if (info.st_uid != user && info.st_uid != 0) return fmt::format("it belongs to another user (uid {})", info.st_uid);
  const bool of_group_alone = info.st_gid == group && group == user;  // distributions make such a group for each user
  if ((info.st_mode & S_IWOTH) != 0 || ((info.st_mode & S_IWGRP) != 0 && !of_group_alone)) return "other users can write it";
  return "";
}

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
    if (only != "none") SHOAL_OK(add_file(out, only, Place::kOfUser));
    return out;
  }
  for (fs::path at = folder; !at.empty(); at = at.parent_path()) {
    if (is_file(at / "shoal.toml")) {
      SHOAL_OK(add_file(out, at / "shoal.toml", Place::kOfFolder));
      break;
    }
    if (at == at.parent_path()) break;
  }
  const std::string base = variable("XDG_CONFIG_HOME"), home = variable("HOME");
  const fs::path of_user = base.empty() ? fs::path(home) / ".config" : fs::path(base);
  if ((!base.empty() || !home.empty()) && is_file(of_user / "shoal" / "config.toml")) {
    SHOAL_OK(add_file(out, of_user / "shoal" / "config.toml", Place::kOfUser));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
