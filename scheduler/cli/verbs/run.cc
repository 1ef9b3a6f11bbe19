// run: one command on every host of an allocation, which trains on all of them.
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/loop/loop.h"
#include "runtime/net/endpoint.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/run/run_host.h"
#include "scheduler/cli/run/run_signals.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

// The domain of this host's full name, as pods of a headless service have it.
std::string own_domain(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_CANONNAME;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "";
  const std::string name = found->ai_canonname != nullptr ? found->ai_canonname : "";
  freeaddrinfo(found);
  return name.starts_with(host + ".") ? name.substr(host.size() + 1) : "";
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  const bool known = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  return known && getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

bool resolves_to(const std::string& name, const std::vector<std::string>& addresses) {
  const auto found = addresses_of(name);
  return std::find_first_of(found.begin(), found.end(), addresses.begin(), addresses.end()) != found.end();
}

// gloo takes the first address of the host's name that this host has, which is 127.0.1.1 where /etc/hosts says so.
bool resolves_to_these_alone(const std::string& name, const std::vector<std::string>& addresses) {
  const auto found = addresses_of(name);
  const auto is_own = [&](const std::string& a) { return std::find(addresses.begin(), addresses.end(), a) != addresses.end(); };
  return !found.empty() && std::all_of(found.begin(), found.end(), is_own);
}

OwnNames own_names(const LaunchOptions& options) {
  OwnNames out;
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0) out.host = host;
  out.domain = own_domain(out.host);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr) continue;
      const auto text = numeric(at->ifa_addr, at->ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
      if (!text.empty() && !runtime::is_loopback(text)) out.addresses.push_back(text);
    }
    freeifaddrs(all);
  }
  // A resolver may take seconds per name, so it is asked only where no text says which host this is.
  if (std::any_of(options.nodes.begin(), options.nodes.end(), [&](const auto& node) { return names_host(node, out); })) return out;
  std::vector<std::uint32_t> own;
  for (std::uint32_t i = 0; i < options.nodes.size(); ++i) {
    if (resolves_to(options.nodes[i], out.addresses)) own.push_back(i);
  }
  if (own.size() == 1) out.resolved = own.front();
  return out;
}

std::int64_t unix_s() {
  runtime::Loop loop;
  return runtime::make_real_clock(loop)->unix_millis() / 1000;
}

int refuse(const Common& common, const Error& error) {
  print_error(error, common.json);
  const auto file = common.environment.get("TORCHELASTIC_ERROR_FILE");
  if (!file.empty()) (void)write_torchelastic_error({kDoNotRetry, error.message(), {}, false, "", unix_s()}, file);
  return kDoNotRetry;
}

int list_variables(const Common& common) {
  if (common.json) {
    json rows = json::array();
    for (const auto& v : launch_variables())
      rows.push_back({{"name", v.name}, {"system", v.system}, {"meaning", v.meaning}, {"value", common.environment.get(v.name)}});
    print_json({{"schema", "shoal.run-variables/1"}, {"rows", rows}});
    return kOk;
  }
  for (const auto& v : launch_variables()) {
    const auto value = common.environment.get(v.name);
    print(stdout, "{:12} {:28} {}{}\n", v.system, v.name, v.meaning, value.empty() ? "" : " [" + value + "]");
  }
  return kOk;
}

std::string in_words(const Allocation& a, std::uint32_t num_ranks, const RunOptions& options) {
  if (a.joins) return fmt::format("a host that joins the run of {}", options.folder.empty() ? a.leader : options.folder);
  const auto hosts = a.elastic ? fmt::format("{} to {} hosts", a.min_nodes, a.max_nodes)
                               : fmt::format("{} host{}", a.max_nodes, a.max_nodes == 1 ? "" : "s");
  return fmt::format("host {} of {}{}, {}", a.node_rank, hosts,
                     a.leads()          ? ", which leads"
                     : a.leader.empty() ? ""
                                        : ", led by " + a.leader,
                     options.trainer ? "the script runs once, and its Trainer starts the ranks"
                                     : fmt::format("{} rank{} per host", num_ranks, num_ranks == 1 ? "" : "s"));
}

// No option and no variable names the run, so that each run of these hosts has the same name.
bool has_no_name(const RunOptions& options, const Allocation& allocation) {
  return options.folder.empty() && allocation.run.empty() && allocation.max_nodes > 1;
}

std::string folder_of(const RunOptions& options, const Allocation& allocation) {
  if (!options.folder.empty()) return options.folder;
  const std::string name = !allocation.run.empty()    ? allocation.run
                           : allocation.max_nodes > 1 ? "run"
                                                      : fmt::format("{}-{}", unix_s(), getpid());
  std::string safe = name;
  for (char& c : safe) {
    if (c == '/' || c == '\n') c = '_';
  }
  return "shoal-run/" + safe;
}

int run(const Common& common, const RunOptions& given) {
  std::signal(SIGCHLD, SIG_DFL);  // some supervisors let it be ignored, and then no child has an exit code
  if (given.list_variables) return finish_output(list_variables(common));
  if (given.launch.joins && given.folder.empty() && given.launch.leader.empty()) {
    return refuse(common, invalid_argument("nothing says which run this host joins")
                              .with_reason("Incomplete")
                              .with_hint("pass the run's --run-folder, or --master-addr with its secret (SHOAL_TOKEN_FILE)"));
  }
  if (given.words.empty() && !given.dry_run && !given.launch.joins)
    return refuse(
        common,
        invalid_argument("nothing to run").with_reason("Usage").with_hint("shoal run SCRIPT [ARGS]   or   shoal run -- CMD [ARGS]"));
  if (const auto right = check_switches(common.environment); !right) return refuse(common, right.error());
  const OwnNames own = own_names(given.launch);
  const auto allocation = decide_allocation(given.launch, common.environment, own);
  if (!allocation) return refuse(common, allocation.error());
  RunOptions options = given;
  options.trainer = given.trainer || allocation->elastic;
  const auto gpus = static_cast<std::uint32_t>(detect_resources().units("GPU") / actors::Resources::kUnit);
  const std::uint32_t num_ranks = allocation->num_ranks.value_or(std::max(1u, gpus));
  const auto folder_path = folder_of(options, *allocation);
  if (options.dry_run && common.json) {
    print_json({{"schema", "shoal.run-plan/1"},
                {"host", allocation->node_rank},
                {"min_hosts", allocation->min_nodes},
                {"max_hosts", allocation->max_nodes},
                {"elastic", allocation->elastic},
                {"leader", allocation->leader},
                {"hosts", allocation->nodes},
                {"ranks_per_host", num_ranks},
                {"folder", folder_path},
                {"taken", allocation->taken}});
    return finish_output(kOk);
  }
  print(stderr, "shoal: {}{}\n", in_words(*allocation, num_ranks, options),
        allocation->taken.empty() ? "" : fmt::format(" ({})", fmt::join(allocation->taken, " ")));
  if (options.dry_run) return kOk;
  auto folder = RunFolder::make(folder_path);
  if (!folder) return refuse(common, folder.error());
  const bool runs_script = !options.command && !allocation->joins && (allocation->leads() || !options.trainer);
  std::error_code error;
  if (runs_script && !std::filesystem::is_regular_file(options.words[0], error)) {
    const auto missing = not_found(fmt::format("no script {} in {}", options.words[0], std::filesystem::current_path(error).string()))
                             .with_reason("NoScript")
                             .with_hint("to run a program: shoal run -- " + options.words[0] + " ...");
    (void)folder->write_exit({kDoNotRetry, missing.message(), {}, false, "", unix_s()}, allocation->node_rank);
    return refuse(common, missing);
  }
  if (allocation->leads() && has_no_name(options, *allocation)) {
    const auto aside = folder->set_earlier_run_aside();
    if (!aside) print(stderr, "shoal: warning: the record of an earlier run stays in {}: {}\n", folder->path(), aside.error().message());
    if (aside && !aside->empty()) print(stderr, "shoal: the record of the run before is in {}\n", *aside);
  }
  if (allocation->elastic && allocation->leads()) {
    print(
        stderr,
        "shoal: hosts may come and go if the script has an elastic Trainer; a script that is started once per rank cannot be elastic. From "
        "another job they join by --join --max {} --run-folder {}\n",
        allocation->max_nodes, folder->path());
  }
  if (allocation->leads() && !common.json) print(stderr, "shoal: recorded in {}; `shoal top` shows what the ranks do\n", folder_path);
  watch_run_signals();
  return run_host({common, options, *allocation, num_ranks, *folder, resolves_to_these_alone(own.host, own.addresses)});
}

}  // namespace

void add_run(CommandLine& line) {
  auto& options = line.own<RunOptions>();
  auto* verb = line.add_verb_without_cluster(
      "run", "Train on all hosts of an allocation: the same command on each of them, or on one host alone (docs/launch.md)");
  line.takes_command(verb, CommandLine::Command::kProgramOrScript);
  line.set_usage_exit(verb, kDoNotRetry);
  line.keeps_programs_code(verb);
  verb->add_option_function<std::string>(
      "--nproc,--nproc-per-node",
      [&options](const std::string& text) {
        if (text == "auto" || text == "gpu") return;
        char* end = nullptr;
        const auto number = std::strtoul(text.c_str(), &end, 10);
        if (*end != 0 || number == 0 || number > 4096) throw CLI::ValidationError("--nproc is a number of ranks per host, or auto");
        options.launch.num_ranks = static_cast<std::uint32_t>(number);
      },
      "Ranks per host; auto: as many as the host has GPUs, or 1 (default: auto, or what the scheduler's variables say)");
  verb->add_option("--min", options.launch.min, "An elastic run: hosts with which it begins")->check(positive());
  verb->add_option("--max", options.launch.max, "An elastic run: hosts that it may have")->check(positive());
  auto* driver = verb->add_flag("--driver", options.trainer,
                                "Run the script once, on the first host: its Trainer starts the ranks (implied by --min and --max)");
  auto* nodes =
      verb->add_option("--hosts", options.launch.nodes, "Names or addresses of all hosts, the same list on each; the first one leads")
          ->delimiter(',');
  auto* num_nodes = verb->add_option("--nnodes", options.launch.num_nodes, "Number of hosts, where no variable says it")->check(positive());
  auto* node_rank = verb->add_option("--node-rank", options.launch.node_rank, "This host's number, from 0, where no variable says it");
  verb->add_option("--master-addr", options.launch.leader, "The first host, where no variable says it");
  verb->add_flag("--join", options.launch.joins,
                 "This host comes later to an elastic run, from a job of its own; it needs no SCRIPT, but --max and the run's --run-folder")
      ->excludes(nodes)
      ->excludes(num_nodes)
      ->excludes(node_rank)
      ->excludes(driver);
  verb->add_option("--interface", options.interface, "Network interface of this host for control and data, by name or address");
  verb->add_option("--port", options.port, "Port of the head; 0 chooses a free one")->capture_default_str();
  verb->add_flag("--data-tls", options.data_tls, "Encrypt the data that ranks on several hosts exchange");
  verb->add_option("--run-folder", options.folder,
                   "Folder that all hosts share, by which they meet; it gets the record of the end (default: shoal-run/NAME in the working "
                   "directory)");
  verb->add_option("--join-timeout", options.join_timeout_s, "Seconds until all hosts have to be there")
      ->capture_default_str()
      ->check(positive());
  verb->add_option("--grace", options.grace_s,
                   "Seconds from SIGTERM, SIGUSR1 or SIGUSR2 to the end of this command; the ranks have all but the last 6 of them (at "
                   "least half) to save")
      ->capture_default_str()
      ->check(positive());
  verb->add_flag("--dry-run", options.dry_run, "Print what this host would be, and end");
  verb->add_flag("--variables", options.list_variables, "Print the variables that this command reads, and their values");
  line.on_run(verb, [&line, &options](const Common& common) {
    options.words = line.command();
    options.command = !line.command_is_script();
    return run(common, options);
  });
}

}  // namespace shoal::scheduler::cli
