#include "scheduler/cli/launch/request.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "runtime/core/utf8.h"
#include "scheduler/cli/launch/secrets.h"

namespace shoal::scheduler::cli {

namespace {

constexpr std::size_t kLongestName = 40;  // a pod's name adds the Job's name and two numbers, and has at most 63 characters
constexpr std::uint32_t kMostHosts = 65536;
constexpr std::uint32_t kLongestSignal = 65535;  // seconds, the most that sbatch takes in --signal
constexpr auto kLongestLimit = std::chrono::hours(24 * 365);

constexpr const char* kLower = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr const char* kUpper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

Error contradiction(const std::string& what, const std::string& hint) {
  return invalid_argument(what).with_reason("Contradiction").with_hint(hint);
}

Error bad_value(const std::string& option, const std::string& text, const std::string& expected) {
  return invalid_argument(fmt::format("{} {} is not {}", option, text.empty() ? "''" : text, expected)).with_reason("BadValue");
}

bool consists_of(const std::string& text, const std::string& characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string::npos;
}

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || at != text.data() + text.size()) return {};
  return number;
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> out = {""};
  for (const char c : text) {
    if (c == separator) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

// Checks a name of Slurm: it has to be a word that neither a shell nor sbatch takes for anything else.
Result<void> check_plain(const std::string& option, const std::string& text) {
  if (text.empty()) return {};
  if (text.front() != '-' && consists_of(text, std::string(kLower) + kUpper + "._-,@:+")) return {};
  return fail(bad_value(option, text, "a name of letters, digits and . _ - , @ : +"));
}

// Checks a name of Kubernetes (RFC 1123).
Result<void> check_label(const std::string& option, const std::string& text, std::size_t longest) {
  if (text.empty()) return {};
  const bool fits = consists_of(text, std::string(kLower) + "-") && text.front() != '-' && text.back() != '-' && text.size() <= longest;
  if (fits) return {};
  return fail(bad_value(option, text, fmt::format("a name of up to {} lower-case letters, digits and -", longest)));
}

// "out/Train GPT.py" becomes train-gpt.
std::string name_after(const std::string& word) {
  std::string base = word.substr(word.find_last_of('/') + 1);
  base = base.substr(0, base.find('.'));
  std::string out;
  for (char c : base) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool fits = std::string(kLower).find(c) != std::string::npos;
    if (fits) out += c;
    if (!fits && !out.empty() && out.back() != '-') out += '-';
  }
  out = out.substr(0, kLongestName);
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "run" : out;
}

Result<void> check_hosts(const LaunchRequest& r, LaunchTarget launcher) {
  if (r.min.has_value() != r.max.has_value())
    return fail(contradiction("--min and --max belong together", "pass both, or --hosts for a fixed number"));
  if (r.min && *r.min > *r.max) return fail(contradiction(fmt::format("--min {} is above --max {}", *r.min, *r.max), "exchange them"));
  if (launcher == LaunchTarget::kSsh) {
    if (r.hosts.empty()) return fail(contradiction("ssh needs the names of the hosts", "pass --hosts HOST,HOST"));
    if (r.min && (r.hosts.size() < *r.min || r.hosts.size() > *r.max)) {
      return fail(contradiction(fmt::format("--hosts names {} hosts, and the run has {} to {}", r.hosts.size(), *r.min, *r.max),
                                "name as many as it may begin with"));
    }
    return {};
  }
  if (r.elastic() && r.num_hosts)
    return fail(contradiction("--hosts fixes the number of hosts, and --min and --max do not", "leave one of them out"));
  if (!r.hosts.empty() && launcher != LaunchTarget::kSlurm)
    return fail(contradiction("--hosts names hosts, and a JobSet has pods without names", "pass their number"));
  return {};
}

Result<void> check_limits(const LaunchRequest& r, LaunchTarget launcher) {
  const std::uint64_t announced = std::uint64_t(r.grace_s) + kEndMargin;
  if (r.grace_s == 0 || announced > kLongestSignal)
    return fail(
        bad_value("--grace", std::to_string(r.grace_s), fmt::format("a number of seconds from 1 to {}", kLongestSignal - kEndMargin)));
  if (r.time.count() > 0 && launcher == LaunchTarget::kSlurm && static_cast<std::uint64_t>(r.time.count()) <= announced) {
    return fail(contradiction(fmt::format("--time {} s is no longer than --grace {} s and {} s for the end, so the run would never train",
                                          r.time.count(), r.grace_s, kEndMargin),
                              "pass a longer --time or a shorter --grace"));
  }
  return {};
}

Result<void> check_variables(const LaunchRequest& r, LaunchTarget launcher) {
  const bool ssh = launcher == LaunchTarget::kSsh, slurm = launcher == LaunchTarget::kSlurm;
  for (std::size_t i = 0; i < r.variables.size(); ++i) {
    const auto& name = r.variables[i].name;
    const auto same = [&](const LaunchVariable& other) { return other.name == name; };
    if (std::count_if(r.variables.begin(), r.variables.end(), same) > 1)
      return fail(contradiction("--env names " + name + " twice", "leave one of them out"));
    if (name == "SHOAL_TOKEN" || (name == "SHOAL_TOKEN_FILE" && !slurm))
      return fail(contradiction("--env " + name + " would replace the secret by which the hosts meet", "leave it out"));
    const bool named = names_secret(name);
    if ((!named && !has_password(r.variables[i].value)) || (ssh && r.variables[i].inherited)) continue;
    return fail(contradiction(fmt::format("--env {}: its {}, which would stand in {}", name,
                                          named ? "name says that it is a secret" : "value has an address with a password",
                                          ssh ? "the words of a command" : "the file"),
                              ssh     ? fmt::format("set {0} here and pass --env {0} alone: its value goes through stdin", name)
                              : slurm ? fmt::format("set {} here: sbatch passes the caller's environment on", name)
                                      : fmt::format("make a Secret of Kubernetes, and add it to the file by env.valueFrom.secretKeyRef")));
  }
  if (ssh || slurm) return {};
  for (const auto& variable : r.variables) {
    if (valid_utf8(variable.value) != variable.value)
      return fail(bad_value("--env " + variable.name, variable.value, "UTF-8, which YAML needs"));
  }
  return {};
}

Result<void> check_pods(const LaunchRequest& r, LaunchTarget launcher) {
  if (r.image.empty()) return fail(contradiction("pods need an image with Shoal and the script", "pass --image REGISTRY/NAME:TAG"));
  if (r.image.front() == '-' || !consists_of(r.image, std::string(kLower) + kUpper + "._-/:@"))
    return fail(bad_value("--image", r.image, "the name of an image"));
  SHOAL_OK(check_label("--name", r.name, kLongestName));
  SHOAL_OK(check_label("--namespace", r.space, 63));
  SHOAL_OK(check_label("--secret", r.secret, 63));
  SHOAL_OK(check_label("--queue", r.queue, 63));
  if (launcher == LaunchTarget::kKueue && r.queue.empty())
    return fail(contradiction("kueue needs the name of a queue", "pass --queue NAME"));
  if (!r.memory.empty()) {
    const auto unit = std::min(r.memory.find_first_not_of("0123456789"), r.memory.size());
    const auto units = {"", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"};
    const bool fits = unit > 0 && std::find(units.begin(), units.end(), r.memory.substr(unit)) != units.end();
    if (!fits) return fail(bad_value("--memory-per-host", r.memory, "an amount such as 64Gi"));
  }
  for (const auto& word : run_words(r)) {
    if (valid_utf8(word) != word) return fail(bad_value("an argument of the script,", word, "UTF-8, which YAML needs"));
  }
  return {};
}

}  // namespace

Result<void> read_hosts(const std::string& text, LaunchRequest& request) {
  if (const auto number = number_in(text)) {
    if (*number == 0 || *number > kMostHosts) return fail(bad_value("--hosts", text, fmt::format("a number from 1 to {}", kMostHosts)));
    request.num_hosts = static_cast<std::uint32_t>(*number);
    return {};
  }
  for (const auto& name : parts_of(text, ',')) {
    if (name.empty()) return fail(bad_value("--hosts", text, "a number, or names with commas between them"));
    if (name.front() == '-' || !consists_of(name, std::string(kLower) + kUpper + "._-"))
      return fail(bad_value("--hosts", name, "the name of a host"));
    if (std::find(request.hosts.begin(), request.hosts.end(), name) != request.hosts.end())
      return fail(contradiction("--hosts names " + name + " twice", "`shoal run` starts once per host"));
    request.hosts.push_back(name);
  }
  request.num_hosts = static_cast<std::uint32_t>(request.hosts.size());
  return {};
}

Result<std::chrono::seconds> read_limit(const std::string& text) {
  const auto refused = [&] { return fail(bad_value("--time", text, "a limit such as 45m, 4h, 2d, 12:00:00 or 1-12:00:00")); };
  std::uint64_t days = 0, s = 0;
  std::string rest = text;
  if (const auto dash = text.find('-'); dash != std::string::npos) {
    const auto number = number_in(text.substr(0, dash));
    if (!number || *number > 365) return refused();
    days = *number;
    rest = text.substr(dash + 1);
  }
  const auto fields = parts_of(rest, ':');
  if (fields.size() == 3) {
    for (const auto& field : fields) {
      const auto number = number_in(field);
      if (!number || *number > 24 * 365) return refused();
      s = s * 60 + *number;
    }
  } else {
    const std::string units = "smhd";
    const auto unit = rest.empty() ? std::string::npos : units.find(rest.back());
    const auto number = rest.empty() ? std::nullopt : number_in(rest.substr(0, rest.size() - 1));
    if (fields.size() != 1 || rest != text || unit == std::string::npos || !number || *number > 100'000'000) return refused();
    s = *number * std::array{1u, 60u, 3600u, 86400u}[unit];
  }
  const std::chrono::seconds out(days * 86400 + s);
  if (out.count() == 0 || out > kLongestLimit) return refused();
  return out;
}

Result<Volume> read_volume(const std::string& text) {
  const auto colon = text.find(':');
  const Volume out{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  const bool fits = !out.claim.empty() && out.path.starts_with('/') && consists_of(out.path, std::string(kLower) + kUpper + "._-/");
  if (!fits) return fail(bad_value("--volume", text, "CLAIM:/PATH"));
  SHOAL_OK(check_label("--volume", out.claim, 63));
  return out;
}

const std::vector<std::string> kTrainingSettings = {"SHOAL_DEVICE_TRANSPORT", "SHOAL_FSDP",        "SHOAL_LEASE_GUARD",  "SHOAL_SPMD",
                                                    "SHOAL_SPMD_DEVICES",     "SHOAL_SPMD_VERIFY", "SHOAL_SPMD_WORKERS", "SHOAL_TIMEOUT",
                                                    "SHOAL_TRANSPORT"};

Result<LaunchVariable> read_variable(const std::string& text,
                                     const std::function<std::optional<std::string>(const std::string&)>& callers) {
  const auto equals = text.find('=');
  const auto name = text.substr(0, equals);
  if (!consists_of(name, std::string(kLower) + kUpper + "_") || (name.front() >= '0' && name.front() <= '9'))
    return fail(bad_value("--env", text, "NAME=VALUE or NAME, with a name of letters, digits and _"));
  if (equals != std::string::npos) return LaunchVariable{name, text.substr(equals + 1)};
  const auto value = callers(name);
  if (!value)
    return fail(invalid_argument(fmt::format("--env {0}: the variable {0} is not set here", name))
                    .with_reason("BadValue")
                    .with_hint(fmt::format("set it, or pass --env {}=VALUE", name)));
  return LaunchVariable{name, *value, true};
}

Result<LaunchRequest> complete(LaunchRequest request, LaunchTarget launcher) {
  if (request.words.empty())
    return fail(invalid_argument("nothing to run")
                    .with_reason("Usage")
                    .with_hint("shoal launch .. SCRIPT [ARGS]   or   shoal launch .. -- CMD [ARGS]"));
  if (request.name.empty()) request.name = name_after(request.words.front());
  if (!consists_of(request.name, std::string(kLower) + kUpper + "._-") || request.name.front() == '-' || request.name.size() > 200)
    return fail(bad_value("--name", request.name, "a name of letters, digits and . _ -"));
  SHOAL_OK(check_hosts(request, launcher));
  SHOAL_OK(check_limits(request, launcher));
  SHOAL_OK(check_variables(request, launcher));
  if (!consists_of(request.shoal, std::string(kLower) + kUpper + "._-/+@ ") || request.shoal.front() == '-')
    return fail(bad_value("--shoal", request.shoal, "a name or a path of letters, digits, spaces and . _ - / + @"));
  SHOAL_OK(check_plain("--partition", request.partition));
  SHOAL_OK(check_plain("--account", request.account));
  if (launcher == LaunchTarget::kJobSet || launcher == LaunchTarget::kKueue) {
    SHOAL_OK(check_pods(request, launcher));
    if (request.secret.empty()) request.secret = request.name + "-shoal";
  }
  return request;
}

std::vector<std::string> run_words(const LaunchRequest& request) {
  std::vector<std::string> out;
  if (request.elastic()) {
    out = {"--min", std::to_string(*request.min), "--max", std::to_string(*request.max)};
  } else if (request.trainer) {
    out = {"--driver"};
  }
  if (request.num_ranks) out.insert(out.end(), {"--nproc", std::to_string(*request.num_ranks)});
  out.insert(out.end(), {"--grace", std::to_string(request.grace_s)});
  if (!request.is_script) out.push_back("--");
  out.insert(out.end(), request.words.begin(), request.words.end());
  return out;
}

std::string shell_word(const std::string& text) {
  // A word with = or ~ is quoted: a = before a command's name would assign a variable, and a ~ at the begin would name a home.
  if (consists_of(text, std::string(kLower) + kUpper + "._-/:,@%+")) return text;
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

}  // namespace shoal::scheduler::cli
