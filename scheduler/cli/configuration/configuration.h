// The settings of shoal.toml and of the user's config.toml, and the list of all variables that Shoal reads. docs/configuration.md explains
// both; settings.awk makes the list's source of that page's table.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// A variable that users set.
struct Setting {
  std::string_view name;      // SHOAL_TIMEOUT
  std::string_view fallback;  // the default in words, or ""
  std::string_view about;
};

// In the order of the page, by name.
std::span<const Setting> all_settings();
// True if the value is never printed.
bool is_secret(std::string_view variable);

// A key in a configuration file, with its values.
struct Configured {
  std::vector<std::string> verb;  // the words of an option's section, as in [launch.slurm]; empty for a variable
  std::string name;               // SHOAL_TIMEOUT, or the option without dashes
  std::vector<std::string> values;
  std::string file;
};

struct Configuration {
  std::vector<Configured> settings;  // each key once
  std::vector<std::string> files;    // the files that were read; earlier ones take precedence
  std::vector<std::string> warnings;
  std::map<std::string, std::string> variables;  // values of the command's own environment, without those of files
};

// The keys of a file's text. Returns InvalidArgument/Usage for an unknown variable, a secret or a malformed value. Sections are not
// checked: the verbs know their options.
Result<std::vector<Configured>> parse_configuration(const std::string& text, const std::string& file);

// Why this user does not trust the settings of a file; "" if there is no reason.
std::string distrust(const struct stat& info, uid_t user, gid_t group);

// Reads the files for a command in this folder: shoal.toml there or above, and the user's, or the one of $SHOAL_CONFIG. Returns an error
// for a shoal.toml that chooses a program, a cluster, hosts or a file to write, since it may come with somebody's sources. `variable`: the
// value of an environment variable, or "".
using Variable = std::function<std::string(std::string_view)>;
Result<Configuration> find_configuration(const Variable& variable, const std::string& folder);

// The error for an unknown key. It suggests the key of `known` that the user may have meant.
Error unknown_key(const Configured& key, const std::vector<std::string>& known);

}  // namespace shoal::scheduler::cli
