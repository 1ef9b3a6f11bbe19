#include "scheduler/cli/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>

namespace shoal::scheduler::cli {

namespace fs = std::filesystem;

namespace {

// Variables that a job does not inherit. They name clusters, secrets, stores and this host, or are settings of Shoal for one process.
const std::set<std::string> kNotForJobs = {
    "_",
    "PWD",
    "OLDPWD",
    "SHOAL_ADDRESS",
    "SHOAL_BUILD_ID",
    "SHOAL_CA_FINGERPRINT",
    "SHOAL_CONFIG",
    "SHOAL_GROUP",
    "SHOAL_GROUP_CAPTURES",
    "SHOAL_HOME",
    "SHOAL_HOST",
    "SHOAL_JOB_ID",
    "SHOAL_LOGGING",
    "SHOAL_NAMESPACE",
    "SHOAL_NODE",
    "SHOAL_PACKAGES",
    "SHOAL_PYTHON",
    "SHOAL_RESTARTS",
    "SHOAL_RUNTIME_ENV",
    "SHOAL_SELF_MADE",
    "SHOAL_SESSION",
    "SHOAL_STORE_CA_FILE",
    "SHOAL_STORE_CERT_FILE",
    "SHOAL_STORE_IN_CLEAR_TEXT",
    "SHOAL_STORE_KEY_FILE",
    "SHOAL_TOKEN",
    "SHOAL_TOKEN_FILE",
    "SHOAL_WORKER_ID",
};

// The values of a setting that is on or off, as python/_shoal_switch.py has them.
constexpr std::array<std::string_view, 4> kOn = {"1", "true", "on", "yes"};
constexpr std::array<std::string_view, 5> kOff = {"", "0", "false", "off", "no"};

template <std::size_t n>
bool is_any_of(std::string_view word, const std::array<std::string_view, n>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns `value` in lower case, without the blanks around it.
std::string switch_word(const std::string& value) {
  std::string out;
  const auto begin = value.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return out;
  for (char c : value.substr(begin, value.find_last_not_of(" \t\n") + 1 - begin))
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// The folder in which this command was found. Links are not resolved, because a virtual environment's interpreter lies beside the link.
std::string found_at(const Environment& environment, const std::string& argv0) {
  if (argv0.find('/') != std::string::npos) return fs::absolute(argv0).parent_path();
  const std::string path = environment.get("PATH");
  for (std::size_t from = 0; from <= path.size();) {
    const auto end = std::min(path.find(':', from), path.size());
    const fs::path folder = path.substr(from, end - from);
    if (access((folder / argv0).c_str(), X_OK) == 0) return fs::absolute(folder);
    from = end + 1;
  }
  return {};
}

// `never`: the meaning of 0, for the text of the error.
Result<std::chrono::seconds> seconds_in(const Environment& environment, const std::string& name, std::chrono::seconds otherwise,
                                        const std::string& never) {
  const auto text = environment.get(name);
  if (text.empty()) return otherwise;
  unsigned seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size()) return std::chrono::seconds(seconds);
  return fail(invalid_argument(name + " is a number of seconds (0: " + never + "), not '" + text + "'"));
}

}  // namespace

std::optional<std::string> Environment::find(std::string_view name) const {
  for (const auto& entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) return entry.substr(name.size() + 1);
  }
  return {};
}

std::string Environment::get(std::string_view name) const { return find(name).value_or(""); }

std::string find_python(const Environment& environment, const std::string& argv0) {
  if (const auto named = environment.get("SHOAL_PYTHON"); !named.empty()) return named;
  std::vector<fs::path> places = {found_at(environment, argv0)};
  if (const auto venv = environment.get("VIRTUAL_ENV"); !venv.empty()) places.push_back(fs::path(venv) / "bin");
  for (const auto& folder : places) {
    for (const char* name : {"python3", "python"}) {
      if (!folder.empty() && access((folder / name).c_str(), X_OK) == 0) return folder / name;
    }
  }
  return "python3";
}

std::vector<std::pair<std::string, std::string>> job_variables(const Environment& environment) {
  std::vector<std::pair<std::string, std::string>> out;
  const bool in_worker = !environment.get("SHOAL_WORKER_ID").empty();
  for (const auto& entry : environment.entries()) {
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (in_worker && name == "SHOAL_INTERFACE") continue;  // the interface that its node chose, which the job's hosts may lack
    if (equals != std::string::npos && !kNotForJobs.contains(name)) out.emplace_back(name, entry.substr(equals + 1));
  }
  return out;
}

Result<MemoryRule> memory_rule(const Environment& environment) {
  MemoryRule out;
  if (const auto text = environment.get("SHOAL_MEMORY_USAGE_THRESHOLD"); !text.empty()) {
    char* end = nullptr;
    out.threshold = std::strtod(text.c_str(), &end);
    if (*end != 0 || !(out.threshold >= 0 && out.threshold <= 1)) {
      return fail(invalid_argument(
          "SHOAL_MEMORY_USAGE_THRESHOLD is a share of the memory, 0 to 1 (0 and 1: the node ends no worker), not '" + text + "'"));
    }
  }
  if (const auto text = environment.get("SHOAL_MEMORY_LIMIT"); !text.empty()) {
    char* end = nullptr;
    out.limit = std::strtoull(text.c_str(), &end, 10);
    if (*end != 0 || out.limit == 0 || text[0] == '-') {
      return fail(
          invalid_argument("SHOAL_MEMORY_LIMIT is a number of bytes that the workers of a node may have together, not '" + text + "'"));
    }
  }
  return out;
}

Result<std::chrono::seconds> stopped_limit(const Environment& environment) {
  return seconds_in(environment, "SHOAL_STOPPED_WORKER_LIMIT", kStoppedWorkerLimit, "stopped workers are never ended");
}

Result<std::chrono::seconds> head_absence_limit(const Environment& environment) {
  return seconds_in(environment, "SHOAL_HEAD_ABSENCE_LIMIT", kHeadAbsenceLimit, "the node never ends for want of a head");
}

Result<void> check_switch(const std::string& name, const std::string& value) {
  const auto word = switch_word(value);
  if (is_any_of(word, kOn) || is_any_of(word, kOff)) return {};
  return fail(invalid_argument(name + " is 1, true, on or yes, or 0, false, off, no or empty, not '" + value + "'")
                  .with_reason("Usage")
                  .with_hint("set " + name + " to one of these values, or unset it"));
}

Result<void> check_switches(const Environment& environment) {
  for (const char* name : {"SHOAL_FSDP", "SHOAL_LEASE_GUARD", "SHOAL_SPMD", "SHOAL_SPMD_VERIFY"})
    SHOAL_OK(check_switch(name, environment.get(name)));
  return {};
}

etcd::Access store_access(const Environment& environment) {
  return {{environment.get("SHOAL_STORE_CA_FILE"), environment.get("SHOAL_STORE_CERT_FILE"), environment.get("SHOAL_STORE_KEY_FILE")},
          is_any_of(switch_word(environment.get("SHOAL_STORE_IN_CLEAR_TEXT")), kOn)};
}

}  // namespace shoal::scheduler::cli
