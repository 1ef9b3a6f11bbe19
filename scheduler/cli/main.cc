// The shoal command. Only this file reads the command line and the environment.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include <CLI/CLI.hpp>

#include "runtime/core/version.h"
#include "runtime/process/standard_streams.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/suggestion.h"
#include "scheduler/roles/roles.h"

extern char** environ;

namespace shoal::scheduler::cli {
namespace {

namespace fs = std::filesystem;
using actors::SessionFolder;

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The folder in which this command was found, without resolving links: the environment's interpreter lies there.
std::string found_at(const std::string& argv0) {
  if (argv0.find('/') != std::string::npos) return fs::absolute(argv0).parent_path();
  std::string path = env("PATH");
  for (std::size_t from = 0; from <= path.size();) {
    const auto end = std::min(path.find(':', from), path.size());
    const fs::path folder = path.substr(from, end - from);
    if (access((folder / argv0).c_str(), X_OK) == 0) return fs::absolute(folder);
    from = end + 1;
  }
  return {};
}

std::string find_python(const std::string& argv0) {
  if (const auto named = env("SHOAL_PYTHON"); !named.empty()) return named;
  std::vector<fs::path> places = {found_at(argv0)};
  if (const auto venv = env("VIRTUAL_ENV"); !venv.empty()) places.push_back(fs::path(venv) / "bin");
  for (const auto& folder : places) {
    for (const char* name : {"python3", "python"}) {
      if (!folder.empty() && access((folder / name).c_str(), X_OK) == 0) return folder / name;
    }
  }
  return "python3";
}

// Variables that a job does not inherit: names of clusters, their secrets and stores, this host, and Shoal's own per-process settings.
const std::set<std::string> kNotForJobs = {
    "_",
    "PWD",
    "OLDPWD",
    "SHOAL_ADDRESS",
    "SHOAL_BUILD_ID",
    "SHOAL_CA_FINGERPRINT",
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

// The submitter's environment for the job's processes; Shoal's other settings are included.
std::vector<std::pair<std::string, std::string>> job_env() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry(*e);
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (equals != std::string::npos && !kNotForJobs.contains(name)) {
      out.emplace_back(name, entry.substr(equals + 1));
    }
  }
  return out;
}

// Memory limits at which this host's node ends workers, from the environment; `init` reads the same variables.
Result<MemoryRule> memory_rule() {
  MemoryRule out;
  if (const auto text = env("SHOAL_MEMORY_USAGE_THRESHOLD"); !text.empty()) {
    char* end = nullptr;
    out.threshold = std::strtod(text.c_str(), &end);
    if (*end != 0 || !(out.threshold >= 0 && out.threshold <= 1)) {
      return fail(invalid_argument("SHOAL_MEMORY_USAGE_THRESHOLD is a share of the memory, 0 to 1 (0 and 1: nobody is killed), not '" +
                                   text + "'"));
    }
  }
  if (const auto text = env("SHOAL_MEMORY_LIMIT"); !text.empty()) {
    char* end = nullptr;
    out.limit = std::strtoull(text.c_str(), &end, 10);
    if (*end != 0 || out.limit == 0 || text[0] == '-') {
      return fail(
          invalid_argument("SHOAL_MEMORY_LIMIT is a number of bytes that the workers of a node may have together, not '" + text + "'"));
    }
  }
  return out;
}

void add_store_access(CLI::App& app, etcd::Access& access) {
  app.add_option("--store-ca-file", access.tls.authority,
                 "With --store etcds://..: the certificate of the authority that signed etcd's (PEM; default: $SHOAL_STORE_CA_FILE)");
  app.add_option("--store-cert-file", access.tls.certificate,
                 "Likewise: the certificate by which etcd knows this cluster (default: $SHOAL_STORE_CERT_FILE)");
  app.add_option("--store-key-file", access.tls.key, "Likewise: its key (default: $SHOAL_STORE_KEY_FILE)");
  app.add_flag("--store-in-clear-text", access.in_clear_text,
               "Let --store etcd://.. name servers on other hosts: whoever reaches them can run programs in this cluster (default: "
               "$SHOAL_STORE_IN_CLEAR_TEXT, if it is 1)");
}

// The command line of a role, as start_role() writes it.
int run_role(int argc, char** argv) {
  CLI::App app("a process of a cluster");
  std::string session, head, python, spill_folder, host = "127.0.0.1";
  std::vector<std::string> resources, labels;
  std::uint16_t port = 0;
  int ready_fd = -1;
  pid_t owner = 0;
  bool remove_folder = false, keeps_head = false, fsync = false;
  std::string store;
  HttpRole http;
  app.add_option("--session", session);  // created by a local cluster when absent
  app.add_option("--ready-fd", ready_fd);
  app.add_option("--host", host);
  app.add_option("--port", port);
  app.add_option("--head", head);
  app.add_option("--python", python);
  app.add_option("--resource", resources);
  app.add_option("--label", labels);
  app.add_option("--spill-folder", spill_folder);
  app.add_option("--owner", owner);
  app.add_flag("--remove-folder", remove_folder);
  auto* http_port = app.add_option("--http-port", http.port);
  app.add_flag("--http-or-any", http.or_any);
  app.add_flag("--keeps-head", keeps_head);
  app.add_option("--store", store);
  etcd::Access store_access;
  add_store_access(app, store_access);
  app.add_flag("--fsync", fsync);
  double threshold = -1;
  app.add_option("--memory-usage-threshold", threshold);
  const std::string role = argc > 2 ? argv[2] : "";
  CLI11_PARSE(app, argc - 2, argv + 2);
  auto memory = role == "head" ? MemoryRule() : memory_rule();
  if (!memory) return refuse_role(ready_fd, memory.error());
  if (threshold >= 0) memory->threshold = threshold;
  std::map<std::string, double> defaults;
  if (role == "local") defaults["GPU"] = static_cast<double>(detect_resources().units("GPU")) / actors::Resources::kUnit;
  const auto amounts = parse_amounts(resources, std::move(defaults));
  if (!amounts) {
    print_error(amounts.error(), false);
    return refuse_role(ready_fd, amounts.error());
  }
  const auto label_map = parse_labels(labels);
  if (!label_map) return refuse_role(ready_fd, label_map.error());
  http.on = http_port->count() > 0;
  http.around = {python, env("PATH"), env("PYTHONPATH"), env("HOME").empty() ? "/" : env("HOME")};
  if (role == "head") return run_head({session, host, port, ready_fd, http, store, fsync, store_access});
  if (role == "node") return run_node({session, head, *amounts, *label_map, python, keeps_head, ready_fd, spill_folder, *memory});
  if (role == "local") {
    if (session.empty()) {
      const auto root = SessionFolder::root(std::getenv("SHOAL_HOME"));
      const auto folder = root ? new_session(*root) : Result<SessionFolder>(fail(root.error()));
      if (!folder) return refuse_role(ready_fd, folder.error());
      session = folder->path();
    }
    return run_local({session, *amounts, *label_map, python, owner, remove_folder, ready_fd, http, spill_folder, *memory});
  }
  std::fprintf(stderr, "no such role: %s\n", role.c_str());
  return kUsage;
}

// Reports the first word that stands for a command but names none.
std::optional<Error> unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string before = "shoal ";
  for (int i = 1; i < argc && at->get_require_subcommand_min() > 0; ++i) {
    const std::string word = argv[i];
    if (word.starts_with('-')) return std::nullopt;
    const auto commands = at->get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); });
    std::vector<std::string> names;
    const CLI::App* found = nullptr;
    for (const CLI::App* sub : commands) {
      names.push_back(sub->get_name());
      if (sub->get_name() == word) found = sub;
    }
    if (found == nullptr) {
      const std::string meant = nearest(word, names);
      return invalid_argument("there is no command `" + before + word + "`")
          .with_reason("Usage")
          .with_hint((meant.empty() ? "" : "did you mean `" + before + meant + "`? ") + "`" + before + "--help` lists what there is");
    }
    at = found;
    before += word + " ";
  }
  return std::nullopt;
}

// The argument that the command lacks, and its valid values.
std::optional<Error> missing_argument(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string command = "shoal";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  for (const CLI::Option* option : at->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return invalid_argument("`" + command + "` lacks " + (option->get_positional() ? "its argument `" : "the option `") +
                            option->get_name() + "`")
        .with_reason("Usage")
        .with_hint(option->get_description());
  }
  return std::nullopt;
}

int run(int argc, char** argv) {
  runtime::open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string(argv[1]) == "role") return run_role(argc, argv);
  const bool submitting = argc > 1 && std::string(argv[1]) == "submit";
  const bool submitting_job = argc > 2 && std::string(argv[1]) == "job" && std::string(argv[2]) == "submit";
  // Words after -- belong to the job's command and are taken literally.
  std::vector<std::string> command;
  for (int i = 2; (submitting || submitting_job) && i < argc; ++i) {
    if (std::string(argv[i]) != "--") continue;
    command.assign(argv + i + 1, argv + argc);
    argc = i;
  }

  CLI::App app("Shoal: actors and fully sharded training on a cluster");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("shoal ") + kVersion);
  Common common;
  common.self = fs::read_symlink("/proc/self/exe");
  common.python = find_python(argv[0]);
  common.target.address = env("SHOAL_ADDRESS");
  common.target.token = env("SHOAL_TOKEN");
  common.target.token_file = env("SHOAL_TOKEN_FILE");
  common.target.fingerprint = env("SHOAL_CA_FINGERPRINT");
  unsetenv("SHOAL_TOKEN");  // roles read the token from a file
  int code = kOk;
  const auto shared = [&](CLI::App* sub) {
    sub->add_flag("--json", common.json, "One JSON object on stdout");
    sub->add_option(
        "--address", common.target.address,
        "The cluster: HOST:PORT or unix:@NAME; of several heads HOST:PORT,HOST:PORT (default: $SHOAL_ADDRESS, else the one that runs)");
    sub->add_option_function<std::string>(
        "--token-file",
        [&common](const std::string& file) {
          common.target.token_file = file;
          common.target.token.clear();
          common.target.token_named = true;
        },
        "Of a cluster on other hosts, or with several heads: a copy of its token (default: $SHOAL_TOKEN_FILE, or the token itself in "
        "$SHOAL_TOKEN)");
    sub->add_option("--ca-fingerprint", common.target.fingerprint,
                    "Likewise: the fingerprint that `shoal start --head` printed (default: $SHOAL_CA_FINGERPRINT)");
    return sub;
  };

  const CLI::Validator amount([](std::string& text) { return text.starts_with('-') ? "an amount is 0 or more, not " + text : ""; }, "");
  StartOptions starting;
  auto* start_command = shared(app.add_subcommand("start", "Start a cluster (--head), or add a node to one (--address HOST:PORT)"));
  start_command->add_flag("--head", starting.head, "Start a head and a node here");
  start_command->add_option("--host,--node-ip-address", starting.host,
                            "Where other hosts reach this one: a head listens there, with TLS (default: loopback only); of a host that "
                            "joins (default: its address on the way to the head)");
  starting.port = 7460;
  start_command->add_option("--port", starting.port, "Port of the head; 0 for any free one")->capture_default_str();
  start_command->add_option("--num-cpus", starting.num_cpus, "CPUs that the node offers (logical; default: what the machine has)")
      ->check(amount);
  start_command->add_option("--num-gpus", starting.num_gpus, "GPUs that the node offers")->check(amount);
  start_command->add_option("--memory", starting.memory, "Bytes of memory that the node offers")->check(amount);
  start_command->add_option_function<std::uint64_t>(
      "--object-store-memory", [&](std::uint64_t bytes) { starting.resources.push_back("object_store_memory=" + std::to_string(bytes)); },
      "Bytes of memory that objects may take before they are moved to files (default: 30 % of the machine's)");
  start_command
      ->add_option("--object-spilling-directory", starting.spill_folder,
                   "Folder for those files, on a disk (default: the session's, or /var/tmp where that lies in memory)")
      ->check(CLI::ExistingDirectory);
  start_command
      ->add_option(
          "--memory-usage-threshold", starting.memory_threshold,
          "A share of the memory: beyond it the node ends a worker; 0 or 1: never (default: $SHOAL_MEMORY_USAGE_THRESHOLD, or 0.95)")
      ->check(CLI::Range(0.0, 1.0));
  start_command->add_option("--resource", starting.resources, "NAME=AMOUNT, as often as needed");
  start_command->add_option("--label", starting.labels, "NAME=VALUE of the node, as often as needed; actors may ask for them");
  start_command->add_option_function<std::string>(
      "--resources",
      [&](const std::string& text) {
        const auto words = amounts_of_json(text);
        if (!words) throw CLI::ValidationError(words.error().to_string());
        starting.resources.insert(starting.resources.end(), words->begin(), words->end());
      },
      "The same as JSON: {\"NAME\": AMOUNT}");
  start_command->add_option_function<std::string>(
      "--labels",
      [&](const std::string& text) {
        const auto words = words_of_list(text);
        starting.labels.insert(starting.labels.end(), words.begin(), words.end());
      },
      "The same in one word: NAME=VALUE,NAME=VALUE");
  start_command->add_flag("--block", starting.block, "Stay, and end with a signal what was started");
  for (const char* name : {"--min-worker-port", "--max-worker-port", "--node-manager-port", "--object-manager-port"}) {
    start_command->add_option_function<std::uint16_t>(
        name,
        [name](std::uint16_t) { std::fprintf(stderr, "shoal: warning: %s has no effect: only the head's port can be chosen\n", name); },
        "Ray's; has no effect");
  }
  auto* dashboard_port = start_command->add_option(
      "--dashboard-port", starting.http_port,
      "Port of the head's HTTP interface; 0 for any free one (default: 8265, or any free one when that is taken)");
  start_command->add_option("--dashboard-host", starting.dashboard_host, "Address of the HTTP interface: loopback is all there is");
  start_command->add_option("--include-dashboard", starting.http, "Whether the head has an HTTP interface")->capture_default_str();
  start_command->add_option(
      "--store", starting.store,
      "Where the head keeps its decisions: etcds://HOST:PORT[,HOST:PORT]/NAME, in TLS, or etcd://.. on this host, for a "
      "cluster with several heads (default: a database in its session's folder)");
  starting.store_access = {{env("SHOAL_STORE_CA_FILE"), env("SHOAL_STORE_CERT_FILE"), env("SHOAL_STORE_KEY_FILE")},
                           env("SHOAL_STORE_IN_CLEAR_TEXT") == "1"};
  add_store_access(*start_command, starting.store_access);
  start_command->add_option("--authority", starting.authority,
                            "Of each but the first of several heads with --host: a copy of the folder tls/ of the first one's session (a "
                            "secret, as the token is)");
  std::string durability = "process";
  auto* durability_option =
      start_command
          ->add_option(
              "--durability", durability,
              "process: a decision survives the death of any process, a power cut costs 100 ms of them; fsync: each waits for the disk")
          ->check(CLI::IsMember({"process", "fsync"}))
          ->capture_default_str();
  start_command->callback([&] {
    if (!starting.store.empty() && durability_option->count() > 0) {
      throw CLI::ValidationError("--durability is of the database in the session's folder; etcd waits for its disks by itself");
    }
    if (!starting.authority.empty() && (starting.store.empty() || starting.host.empty())) {
      throw CLI::ValidationError("--authority is of a head of several, over hosts: say --head --store etcds://.. --host ADDRESS");
    }
    if (starting.store.empty() && start_command->count("--store-ca-file") + start_command->count("--store-cert-file") +
                                          start_command->count("--store-key-file") + start_command->count("--store-in-clear-text") >
                                      0) {
      throw CLI::ValidationError(
          "--store-ca-file, --store-cert-file, --store-key-file and --store-in-clear-text are of a store in etcd: say --store");
    }
    if (!starting.head && start_command->count("--store") + start_command->count("--durability") > 0) {
      throw CLI::ValidationError("--store and --durability are of a head: say --head");
    }
    starting.fsync = durability == "fsync";
    starting.http_or_any = dashboard_port->count() == 0;
    if (!starting.head && start_command->count("--address") == 0) throw CLI::ValidationError("say --head, or --address HOST:PORT");
    if (starting.head && start_command->count("--address") > 0) throw CLI::ValidationError("--head and --address exclude each other");
    code = start(common, starting);
  });

  StopOptions stopping;
  auto* stop_command = shared(app.add_subcommand("stop", "End a cluster: its jobs, nodes and head"));
  stop_command->add_flag("--all", stopping.all, "Every cluster of this user");
  stop_command->add_option("-g,--grace,--grace-period", stopping.grace_s, "Seconds before processes are killed")->capture_default_str();
  stop_command->add_flag("-f,--force", stopping.force, "Kill them at once");
  stop_command->callback([&] { code = stop(common, stopping); });

  bool verbose = false;
  auto* status_command = shared(app.add_subcommand("status", "What a cluster has and does, and why something waits"));
  status_command->add_flag("-v,--verbose", verbose, "With its nodes and what is used of them");
  status_command->callback([&] { code = status(common, verbose); });
  shared(app.add_subcommand("health-check", "Exits with 0 when the cluster answers and has a node"))->callback([&] {
    code = health_check(common);
  });

  std::string stack_of;
  auto* stack_command = shared(app.add_subcommand("stack", "What Python threads of this host's workers run, also of those that hang"));
  stack_command->add_option("id", stack_of, "Only of this actor, worker, job or process: its id or the beginning of it");
  stack_command->callback([&] { code = stack(common, stack_of); });

  MemoryOptions memory_options;
  auto* memory_command =
      shared(app.add_subcommand("memory", "Which processes hold which objects, and what they take of each node's memory"));
  memory_command->add_option("--group-by", memory_options.group_by, "What the rows are grouped by")
      ->check(CLI::IsMember({"NODE_ADDRESS", "JOB", "PROCESS"}, CLI::ignore_case))
      ->capture_default_str();
  memory_command->add_option("--sort-by", memory_options.sort_by, "What the rows of a group are sorted by")
      ->check(CLI::IsMember({"OBJECT_SIZE", "PID", "REFERENCE_TYPE"}, CLI::ignore_case))
      ->capture_default_str();
  memory_command->add_option("-n,--num-entries", memory_options.limit, "So many rows of each group; 0: all")->capture_default_str();
  memory_command->add_flag("--stats-only", memory_options.stats_only, "Only the sums");
  memory_command->callback([&] { code = memory(common, memory_options); });

  bool for_prometheus = false;
  auto* metrics_command = shared(app.add_subcommand("metrics", "What the cluster and its users measure, as Prometheus reads it"));
  metrics_command->add_flag("--scrape-config", for_prometheus, "What Prometheus' configuration has to say to read it from this cluster");
  metrics_command->callback([&] { code = for_prometheus ? scrape_config(common) : metrics(common); });

  std::string timeline_file = "timeline.json";
  auto* timeline_command = shared(app.add_subcommand("timeline", "What ran where and when, as a Chrome trace for Perfetto"));
  timeline_command->add_option("-o,--output", timeline_file, "The file that is written; - for stdout")->capture_default_str();
  timeline_command->callback([&] { code = timeline(common, timeline_file); });

  MicrobenchmarkOptions figures;
  auto* microbenchmark_command = app.add_subcommand("microbenchmark", "What this machine does per second, in a cluster of its own");
  microbenchmark_command->add_flag("--json", common.json, "One JSON object on stdout");
  microbenchmark_command->add_option("--filter", figures.filter, "Only figures with this in their names");
  microbenchmark_command->add_option("--seconds", figures.seconds, "For each figure")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 600.0));
  microbenchmark_command->callback([&] { code = microbenchmark(common, figures); });

  SchedulingOptions scheduling;
  const auto scheduling_command = [&](const char* name, const char* about, actors::NodeScheduling wished) {
    auto* sub = shared(app.add_subcommand(name, about));
    sub->add_option("node", scheduling.node, "The node's id, or the beginning of it; `shoal list nodes` shows the ids")->required();
    sub->callback([&, wished] {
      scheduling.scheduling = wished;
      code = set_scheduling(common, scheduling);
    });
    return sub;
  };
  scheduling_command("cordon", "A node takes no new work", actors::NodeScheduling::kCordoned);
  scheduling_command("uncordon", "A cordoned or draining node takes work again", actors::NodeScheduling::kSchedulable);
  auto* drain_command =
      scheduling_command("drain", "A node leaves: actors that may restart move, what else runs there has until the deadline",
                         actors::NodeScheduling::kDraining);
  drain_command->add_option("--deadline", scheduling.deadline_s, "Seconds")->capture_default_str()->check(CLI::Range(0.0, 7 * 24 * 3600.0));
  drain_command->add_flag_callback("--no-wait", [&] { scheduling.wait = false; }, "Do not wait until it has left");
  auto* drain_node_command = shared(app.add_subcommand("drain-node", "The same with Ray's options; does not wait"));
  drain_node_command->add_option("--node-id", scheduling.node, "The node's id (default: the only one that there is)");
  drain_node_command
      ->add_option("--reason", scheduling.reason,
                   "Why: DRAIN_NODE_REASON_IDLE_TERMINATION (only if the node is idle), or DRAIN_NODE_REASON_PREEMPTION")
      ->required()
      ->check(CLI::IsMember({kIdleTermination, "DRAIN_NODE_REASON_PREEMPTION"}));
  drain_node_command->add_option("--reason-message", scheduling.message, "Why, in words")->required();
  auto* remaining =
      drain_node_command->add_option("--deadline-remaining-seconds", scheduling.deadline_s, "Until it leaves (default: a week)")
          ->check(CLI::Range(0.0, 7 * 24 * 3600.0));
  drain_node_command->callback([&, remaining] {
    if (remaining->count() == 0) scheduling.deadline_s = 7 * 24 * 3600.0;
    scheduling.scheduling = actors::NodeScheduling::kDraining;
    scheduling.wait = false;
    code = set_scheduling(common, scheduling);
  });

  const std::string whats = "actors, nodes, workers, jobs, groups, tasks, objects or runtime-envs";
  const auto formatted = [&](CLI::App* sub, std::string& format, std::set<std::string> formats) {
    sub->add_option("--format", format, "How it is shown")->check(CLI::IsMember(std::move(formats)));
  };
  ListOptions listing;
  auto* list_command = shared(app.add_subcommand("list", "Actors, nodes, workers, jobs or placement groups, a row each"));
  list_command->add_option("what", listing.what, whats)->required();
  list_command->add_option("-f,--filter", listing.filters, "KEY=VALUE or KEY!=VALUE, as often as needed")->allow_extra_args(false);
  list_command->add_option("--limit", listing.limit, "So many rows at most (default: of tasks and objects 100, else all; 0: all)");
  list_command->add_flag("--detail", listing.detail, "All that is known of each");
  formatted(list_command, listing.format, {"table", "json", "yaml"});
  list_command->callback([&] { code = list(common, listing); });
  GetOptions getting;
  auto* get_command = shared(app.add_subcommand("get", "All that is known of one of them"));
  auto* describe_command = shared(app.add_subcommand("describe", "One of them, why it waits or ended, and what to do next"));
  for (auto* sub : {get_command, describe_command}) {
    sub->add_option("what", getting.what, whats)->required();
    sub->add_option("id", getting.id, "Its id, or the beginning of it; `shoal list` shows the ids: shoal list actors, ..")->required();
  }
  formatted(get_command, getting.format, {"json", "yaml"});
  get_command->callback([&] { code = get(common, getting); });
  describe_command->callback([&] { code = describe(common, getting); });
  std::string summed;
  auto* summary_command = shared(app.add_subcommand("summary", "How many of them are in which state"));
  summary_command->add_option("what", summed, whats)->required();
  summary_command->callback([&] { code = summary(common, summed); });

  LogsOptions logging;
  auto* logs_command = shared(app.add_subcommand("logs", "What a job, worker or actor printed; also after it ended"));
  logs_command->add_option(
      "id", logging.id, "Its id, or the beginning of it, or an actor's name or class (default: the latest job); or a pattern of log files");
  logs_command->add_flag("-f,--follow", logging.follow, "Go on as it prints");
  logs_command->add_option("-n,--tail", logging.tail_lines, "Only the last N lines of each stream (-1: all that is kept)");
  logs_command->add_flag("--err", logging.only_err, "Only what went to stderr");
  logs_command->add_flag("--previous", logging.previous, "Of an actor that was started again: its process before");
  logs_command->add_option("--node-id", logging.node_id, "The node of the process (--pid), or of the files");
  logs_command->add_option("--node-ip", logging.node_ip, "Likewise");
  for (const auto& [name, about] : {std::pair{"actor", "Of an actor (--id or --pid)"},
                                    {"worker", "Of a process (--pid or --id)"},
                                    {"job", "Of a job (--id: also the one that it was submitted with)"},
                                    {"task", "Of one call of a remote function or a method (--id)"},
                                    {"cluster", "Files of the session: which there are, or the one that the pattern fits"}}) {
    auto* sub = logs_command->add_subcommand(name, about);
    sub->fallthrough();
    const std::string kind = name;
    if (kind == "cluster") {
      sub->add_option("pattern", logging.id, "Of the names of files (default: *)");
    } else {
      sub->add_option("--id", logging.id, "Its id, or the beginning of it");
      if (kind != "job" && kind != "task") sub->add_option("--pid", logging.pid, "Of its process");
    }
    sub->callback([&logging, kind] { logging.kind = kind; });
  }
  logs_command->callback([&] {
    if (logging.follow && logging.previous) throw CLI::ValidationError("--previous and --follow exclude each other");
    if (logging.follow && common.json) throw CLI::ValidationError("--json and --follow exclude each other");
    if (!logging.kind.empty() && logging.kind != "cluster" && logging.id.empty() && logging.pid == 0) {
      throw CLI::ValidationError("say which with --id" + std::string(logging.kind == "job" || logging.kind == "task" ? "" : " or --pid"));
    }
    code = logs(common, logging);
  });

  SubmitOptions submitting_options;
  auto* submit_command =
      shared(app.add_subcommand("submit", "Run a script (SCRIPT [ARGS]) or a command (-- CMD) as a job; exits with its code"));
  submit_command->add_option("--num-workers", submitting_options.num_workers,
                             "A gang of N processes with torchrun's environment variables");
  submit_command->add_option("--num-cpus", submitting_options.num_cpus, "CPUs of each process (default: 1 in a gang, else 0)")
      ->check(amount);
  submit_command->add_option("--num-gpus", submitting_options.num_gpus, "GPUs of each process")->check(amount);
  submit_command->add_option("--resource", submitting_options.resources, "NAME=AMOUNT of each process, as often as needed");
  submit_command->add_flag("--wait", submitting_options.wait, "Wait for nodes that can hold the job, even if none is present");
  submit_command->add_option("--name", submitting_options.name, "Name of the job (default: the script's)");
  submit_command
      ->add_option(
          "--detach-after", submitting_options.detach_after_s,
          "Seconds. The first Ctrl-C ends this command and not the job, but a second one within that time stops the job (a cluster "
          "that was made for the job ends with this command)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 24 * 3600.0));
  submit_command->prefix_command();  // words after the script's name belong to the script
  submit_command->callback([&] {
    submitting_options.words = submit_command->remaining();
    const auto& words = submitting_options.words;
    if (!words.empty() && words[0].starts_with("-")) throw CLI::ValidationError("no such option: " + words[0]);
    if (!command.empty()) {
      if (!words.empty()) throw CLI::ValidationError("a script, or -- and a command: not both");
      submitting_options.command = true;
      submitting_options.words = command;
    }
    submitting_options.cwd = fs::current_path();
    submitting_options.env = job_env();
    code = submit(common, submitting_options);
  });

  JobOptions job;
  auto* job_command = app.add_subcommand("job", "Jobs: submit, status, logs, stop, list, delete");
  job_command->require_subcommand(1);
  auto* job_submit_command =
      shared(job_command->add_subcommand("submit", "Run a shell command line (-- CMD) as a job and show what it prints"));
  job_submit_command->add_option("--submission-id", job.submission_id, "Its id (default: made up)");
  job_submit_command->add_option("--working-dir", job.working_dir, "The folder in which it runs (default: this one)");
  job_submit_command->add_option("--runtime-env", job.runtime_env_file,
                                 "A YAML or JSON file: env_vars, working_dir, pip, py_modules, excludes");
  job_submit_command->add_option("--runtime-env-json", job.runtime_env_json, "The same as JSON text");
  job_submit_command->add_option("--metadata-json", job.metadata_json, "Strings by name, shown with the job");
  job_submit_command->add_option("--entrypoint-num-cpus", job.num_cpus, "CPUs of its process (default: 0)")->check(amount);
  job_submit_command->add_option("--entrypoint-num-gpus", job.num_gpus, "GPUs of its process")->check(amount);
  job_submit_command->add_option("--entrypoint-memory", job.memory, "Bytes of memory of its process")->check(amount);
  job_submit_command->add_option("--entrypoint-resources", job.resources_json, "JSON: amounts by name");
  job_submit_command->add_flag_callback("--no-wait", [&] { job.wait = false; }, "Do not wait for its end");
  job_submit_command->callback([&] {
    if (command.empty()) throw CLI::ValidationError("say what to run: shoal job submit [OPTIONS] -- CMD");
    job.words = command;
    job.cwd = fs::current_path();
    job.path = env("PATH");
    job.python_path = env("PYTHONPATH");
    code = job_submit(common, job);
  });
  const auto job_subcommand = [&](const char* name, const char* about, int (*run)(const Common&, const JobOptions&)) {
    auto* sub = shared(job_command->add_subcommand(name, about));
    sub->add_option("id", job.id, "Its submission id, or its id; `shoal list jobs` shows both")->required();
    sub->callback([&, run] { code = run(common, job); });
    return sub;
  };
  job_subcommand("status", "How a job is; exits with 1 when it failed or was stopped", job_status);
  job_subcommand("logs", "What a job printed", job_logs)->add_flag("-f,--follow", job.follow, "Go on as it prints");
  job_subcommand("stop", "Ask a job to end", job_stop)
      ->add_flag_callback("--no-wait", [&] { job.wait = false; }, "Do not wait for its end");
  job_subcommand("delete", "Forget a job that has ended", job_delete);
  shared(job_command->add_subcommand("list", "Every job that is known"))->callback([&] {
    listing.what = "jobs";
    code = list(common, listing);
  });

  shared(app.add_subcommand("doctor", "What this machine lacks, and what to do about it"))->callback([&] { code = doctor(common); });

  const auto root = SessionFolder::root(std::getenv("SHOAL_HOME"));
  if (!root) {
    print_error(root.error(), false);
    return kFailed;
  }
  common.target.root = *root;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    if (const auto unknown = unknown_command(app, argc, argv)) {
      print_error(*unknown, common.json);
      return kUsage;
    }
    if (const auto missing = missing_argument(app); missing && e.get_name() == "RequiredError") {
      print_error(*missing, common.json);
      return kUsage;
    }
    app.exit(e);
    return submitting ? kSubmitUsage : kUsage;
  }
  return code;
}

}  // namespace
}  // namespace shoal::scheduler::cli

int main(int argc, char** argv) { return shoal::scheduler::cli::run(argc, argv); }
