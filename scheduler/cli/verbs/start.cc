// start: starts a cluster, or adds a node to one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/net/interfaces.h"
#include "runtime/process/process.h"
#include "scheduler/cli/amounts.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/session.h"
#include "scheduler/cli/verbs/joining.h"
#include "scheduler/cli/verbs/role.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

using actors::Method;
using actors::SessionFolder;
using nlohmann::json;

namespace {

// Limits at which a node ends a worker, or itself. One that is not set comes from the environment, or is the default.
struct NodeLimits {
  double memory_threshold = -1;          // -1: not set
  std::optional<unsigned> head_absence;  // seconds; 0: never
};

struct StartOptions {
  bool head = false;
  std::string host;            // listening address of a head, public address of a joining node; "": loopback, or detected
  std::string interface;       // the network interface of `host`, by name or address; "": not chosen
  bool data_tls = false;       // data between hosts travels in TLS only
  std::string dashboard_host;  // "": loopback
  std::uint16_t port = 7460;
  double num_cpus = -1, num_gpus = -1, memory = -1;  // -1: all of the machine's
  NodeLimits limits;
  std::vector<std::string> resources;  // NAME=AMOUNT
  std::vector<std::string> labels;     // NAME=VALUE
  std::optional<std::uint16_t> order;  // among the nodes, for the placement of ranks
  std::string store;                   // etcd://.. or etcds://..; "": a database in the session's folder
  etcd::Access store_access;
  bool from_token = false;             // the authority follows from the token, which is given
  std::string authority;               // tls folder of another head; "": a new authority
  std::string durability = "process";  // "process": commits survive the head's death; "fsync": also a power cut
  std::string spill_folder;            // folder for spilled objects; "": the node's choice
  bool http = true;
  std::string runs;                        // a folder with further runs for the dashboard: that in which `shoal run` records
  std::optional<std::uint16_t> http_port;  // unset: 8265, or any free one
  bool block = false;                      // stay until a signal, the cluster's end or the node's end, then end the started processes
};

constexpr std::uint16_t kHttpPort = 8265;

Result<actors::Resources> offered_resources(const StartOptions& options) {
  const actors::Resources has = detect_resources();
  std::map<std::string, double> amounts;
  for (const auto& [name, units] : has.all()) amounts[name] = static_cast<double>(units) / actors::Resources::kUnit;
  if (options.num_cpus >= 0) amounts["CPU"] = options.num_cpus;
  if (options.num_gpus >= 0) amounts["GPU"] = options.num_gpus;
  if (options.memory >= 0) amounts["memory"] = options.memory;
  return parse_amounts(options.resources, std::move(amounts));
}

Result<actors::StartedRole> start_node(const Common& common, const SessionFolder& folder, const std::string& head,
                                       const actors::Resources& resources, const StartOptions& options, bool keeps_head = false) {
  std::vector<std::string> words = {"node", "--head", head, "--python", common.python};
  for (const auto& w : resource_words(resources)) words.push_back(w);
  for (const auto& label : options.labels) words.insert(words.end(), {"--label", label});
  if (options.limits.memory_threshold >= 0)
    words.insert(words.end(), {"--memory-usage-threshold", std::to_string(options.limits.memory_threshold)});
  if (options.limits.head_absence) words.insert(words.end(), {"--head-absence-limit", std::to_string(*options.limits.head_absence)});
  if (keeps_head) words.push_back("--keeps-head");
  if (options.order) words.insert(words.end(), {"--order", std::to_string(*options.order)});
  if (!options.spill_folder.empty()) words.insert(words.end(), {"--spill-folder", std::filesystem::absolute(options.spill_folder)});
  return start_role(common, folder, std::move(words));
}

volatile std::sig_atomic_t block_ended = 0;

// For --block, before the first role starts: a signal during the start must not leave roles behind.
void watch_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    if (!runtime::is_ignored(number)) std::signal(number, [](int) { block_ended = 1; });
  }
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the report may be gone, and the roles have to end in order
}

Error interrupted() { return cancelled("a signal ended the start"); }

// Runs until this host's node ends or a signal arrives. `whole`: then ends the rest of the session, too.
int run_until_node_ends(const Common& common, const SessionFolder& folder, pid_t node, bool whole) {
  if (!common.json) print(stdout, "It ends with this command (--block): Ctrl-C or SIGTERM.\n");
  std::fflush(stdout);
  const auto there = [&] {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {  // reaps orphans when this is a container's first process
    }
    const auto members = folder.processes();
    return std::any_of(members.begin(), members.end(), [&](const auto& p) { return p.pid == node; });
  };
  while (!block_ended && there()) usleep(50'000);
  const bool in_order = block_ended || folder.ending();
  Result<Stopped> ended;
  if (whole) {
    ended = stop_session(folder, 5);
  } else if (block_ended) {
    kill(node, SIGINT);  // it may ignore SIGTERM
    for (int i = 0; i < 100 && there(); ++i) usleep(50'000);
    if (there()) kill(node, SIGKILL);
  }
  const std::string orphaned = actors::read_orphaned(folder);
  if (!in_order) {
    print_error(unavailable(orphaned.empty() ? "the node of this host ended unexpectedly" : "the node of this host ended: " + orphaned)
                    .with_hint("see " + folder.logs()),
                common.json);
  }
  if (!ended) print_error(ended.error(), common.json);
  return in_order && ended ? kOk : kFailed;
}

Result<void> check_head(const StartOptions& options, const std::string& host) {
  if (host == "0.0.0.0" || host == "::") {
    return fail(invalid_argument("--host " + host + " means every address of this host, but other hosts need one address")
                    .with_hint("name the address at which other hosts reach this one"));
  }
  if (!options.dashboard_host.empty() && !runtime::is_loopback(options.dashboard_host)) {
    return fail(unimplemented("the HTTP interface is on loopback only, because it has no TLS")
                    .with_hint("leave --dashboard-host out, and reach it from elsewhere with: ssh -L 8265:127.0.0.1:8265 " + host));
  }
  if (options.data_tls && runtime::is_loopback(host)) {
    return fail(invalid_argument("--data-tls is for a cluster over several hosts, and this head would listen on loopback only")
                    .with_hint("pass --interface NAME, or --host ADDRESS"));
  }
  return {};
}

// The address at which other hosts reach this one, by --host or --interface; "" without either.
Result<std::string> public_address(const StartOptions& options) {
  if (options.interface.empty() && options.host.starts_with('[')) {
    SHOAL_TRY(const auto at, runtime::parse_endpoint(options.host + ":0"));
    return at.host;
  }
  if (options.interface.empty()) return options.host;
  SHOAL_TRY(const auto interface, runtime::find_interface(options.interface));
  return interface.address;
}

json network_of(const actors::Credentials& credentials) {
  const auto interface = runtime::find_interface(credentials.host);
  return {{"interface", interface ? interface->name : ""}, {"host", credentials.host}, {"data_tls", credentials.data_tls}};
}

// The session of a new head, and the fingerprint of its certificate authority; "" if it listens on loopback only.
struct HeadSession {
  SessionFolder folder;
  std::string fingerprint;
};

Result<HeadSession> make_head_session(const Common& common, const StartOptions& options, const std::string& host) {
  std::optional<runtime::Token> shared;  // heads that share a store have one token
  if ((!options.store.empty() || options.from_token) && (!common.target.token.empty() || !common.target.token_file.empty())) {
    SHOAL_TRY(const auto credentials, credentials_of(common.target));
    shared = credentials.token;
  }
  SHOAL_TRY(auto folder, new_session(common.target.root, shared));
  if (runtime::is_loopback(host)) return HeadSession{std::move(folder), ""};
  auto fingerprint = make_certificates(folder, host, options.authority, {options.interface, options.data_tls}, options.from_token);
  if (fingerprint) return HeadSession{std::move(folder), *std::move(fingerprint)};
  folder.remove();
  return fail(fingerprint.error());
}

std::vector<std::string> head_words(const Common& common, const StartOptions& options, const std::string& host) {
  std::vector<std::string> words = {"head", "--host", host, "--port", std::to_string(options.port), "--python", common.python};
  if (!options.store.empty()) {
    words.insert(words.end(), {"--store", options.store});
    const auto& [tls, in_clear_text] = options.store_access;
    const std::pair<const char*, const std::string*> files[] = {
        {"--store-ca-file", &tls.authority}, {"--store-cert-file", &tls.certificate}, {"--store-key-file", &tls.key}};
    for (const auto& [name, path] : files) {  // absolute, as the head has another working directory
      if (!path->empty()) words.insert(words.end(), {name, std::filesystem::absolute(*path)});
    }
    if (in_clear_text) words.push_back("--store-in-clear-text");
  }
  if (options.durability == "fsync") words.push_back("--fsync");
  if (options.http) words.insert(words.end(), {"--http-port", std::to_string(options.http_port.value_or(kHttpPort))});
  if (options.http && !options.http_port) words.push_back("--http-or-any");
  // Those of `shoal run` lie where it was started.
  std::error_code gone;
  for (const auto& folder : {std::filesystem::current_path(gone).string() + "/shoal-run", options.runs})
    if (options.http && !folder.empty()) words.insert(words.end(), {"--runs", folder});
  return words;
}

// Waits until the node has registered: then the cluster can place work.
Result<void> wait_until_registered(const SessionFolder& folder, const actors::SessionInfo& info, const std::string& node) {
  SHOAL_TRY(const auto credentials, folder.credentials());
  Context context(credentials);
  SHOAL_TRY(const auto client, Client::connect(context, info.way()));
  const auto registered = [&] {
    if (client->closed()) (void)client->reconnect(runtime::Duration::zero());
    if (!info.store.empty()) {  // a shared store may have other nodes
      const auto nodes = client->list(actors::ListRequest::What::kNodes);
      return nodes && std::any_of(nodes->nodes.begin(), nodes->nodes.end(), [&](const auto& n) { return to_string(n.id) == node; });
    }
    const auto status = client->request_for<actors::ClusterStatus>(Method::kStatus, {});
    return status && status->num_nodes > 0;
  };
  const auto end = context.clock->now() + std::chrono::seconds(10);
  while (!registered()) {
    if (block_ended) return fail(interrupted());
    if (context.clock->now() >= end) {
      return fail(deadline_exceeded("the node did not register with the head").with_hint("see " + folder.logs()));
    }
    context.run_until([] { return false; }, std::chrono::milliseconds(2));
  }
  return {};
}

// The address as a word of a shell command: some shells take an IPv6 address's brackets for a pattern of file names.
std::string as_shell_word(const std::string& address) { return address.starts_with('[') ? "'" + address + "'" : address; }

void print_head(const Common& common, const HeadSession& session, const actors::StartedRole& head, const actors::Resources& resources) {
  const auto& [folder, fingerprint] = session;
  const auto info = folder.info();
  const std::string& address = head.head;
  const std::string http = info ? info->http : "";
  const std::string leader = info && !info->heads.empty() ? info->heads.front() : address;
  const auto credentials = folder.credentials();
  if (common.json) {
    print_json({{"schema", "shoal.start/1"},
                {"address", address},
                {"local", head.head_local},
                {"session", folder.path()},
                {"http", http},
                {"ca_fingerprint", fingerprint},
                {"network", credentials && !fingerprint.empty() ? network_of(*credentials) : json()},
                {"leader", leader},
                {"resources", to_json(resources)}});
  } else if (leader != address) {
    print(stdout, "A head at {} waits behind the one at {}, with a node with {}.\n  session  {}\n", address, leader, resources.to_string(),
          folder.path());
  } else {
    print(stdout, "Shoal runs at {} with {}.\n  session  {}\n", address, resources.to_string(), folder.path());
    if (!http.empty()) print(stdout, "  http     {}   (token: {}/http-token)\n", http, folder.path());
    print(stdout, "  next     shoal submit train.py   |   shoal status   |   shoal stop --address {}\n", as_shell_word(address));
    if (!fingerprint.empty()) {
      if (credentials) print(stdout, "  network  {}\n", describe_network(*credentials));
      print(
          stdout,
          "  join     shoal start --address {} --token-file FILE --ca-fingerprint {}\n           on another host, where FILE is a copy of "
          "{}/token\n",
          as_shell_word(address), fingerprint, folder.path());
    }
  }
  std::fflush(stdout);
}

int start_head(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto reached_at = public_address(options);
  if (!reached_at) return failed(common, reached_at.error());
  const std::string host = reached_at->empty() ? "127.0.0.1" : *reached_at;
  if (const auto checked = check_head(options, host); !checked) return failed(common, checked.error());
  const auto session = make_head_session(common, options, host);
  if (!session) return failed(common, session.error());
  const SessionFolder& folder = session->folder;
  const auto head = start_role(common, folder, head_words(common, options, host));
  if (!head) {
    folder.remove();
    return failed(common, head.error());
  }
  const auto give_up = [&](const Error& e) {  // ends the processes that have started already
    (void)stop_session(folder, 1);
    return failed(common, e);
  };
  const auto info = folder.info();
  if (!info) return give_up(info.error());
  if (block_ended) return give_up(interrupted());
  const auto node = start_node(common, folder, info->way(), resources, options, true);
  if (!node) return give_up(node.error());
  if (block_ended) return give_up(interrupted());
  if (const auto ready = wait_until_registered(folder, *info, node->id); !ready) return give_up(ready.error());
  print_head(common, *session, *head, resources);
  return options.block ? run_until_node_ends(common, folder, node->pid, true) : kOk;
}

// This host's session of the cluster, which the first node of the host creates. Further nodes share its network.
Result<SessionFolder> session_to_join(const Common& common, const StartOptions& options, const Found& found) {
  SHOAL_TRY(const auto host, public_address(options));
  if (!found.folder) return join(common, host, found, {options.interface, options.data_tls});
  const bool numeric = host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
  const std::string has = found.credentials.host.empty() ? "127.0.0.1" : found.credentials.host;
  if (!host.empty() && numeric && has != host) {
    const std::string named = options.interface.empty() ? "--host is " : "--interface " + options.interface + " has ";
    return fail(invalid_argument("this host is in the cluster with the address " + has + ", and " + named + host)
                    .with_hint("leave --interface and --host out, or leave the cluster first: shoal stop. If " + has +
                               " is another host, they share the disk of " + common.target.root +
                               ": give each host a SHOAL_HOME of its own"));
  }
  if (options.data_tls && !found.credentials.data_tls)
    return fail(invalid_argument("the cluster's head was started without --data-tls").with_reason("DataTls"));
  return *found.folder;
}

// Ends what is left here of a cluster whose address another cluster has now: its head is gone for good, and its node and workers would keep
// this host's memory and devices until they notice that.
Result<void> end_predecessor(const Found& found) {
  const auto info = found.other->info();
  if (!info || !info->head_local.empty() || !info->store.empty()) return {};  // it has heads elsewhere, or here
  SHOAL_OK(stop_session(*found.other, 5));
  print(stderr, "shoal: ended what was left here of an earlier cluster at {} ({})\n", found.address, found.other->path());
  return {};
}

int start_joining(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto found = find_cluster(common.target, true);
  if (!found) return failed(common, found.error());
  if (found->folder) {  // asks the head first, because a node that finds none retries without an error
    Context context(found->credentials);
    const auto client = connect_head(context, *found);
    if (!client) return failed(common, client.error());
  }
  const auto folder = session_to_join(common, options, *found);
  if (!folder) return failed(common, folder.error());
  if (found->other) {
    // The head has accepted the named token, so it is not the one of this host's earlier session.
    if (const auto ended = end_predecessor(*found); !ended) return failed(common, ended.error());
  }
  const auto node = start_node(common, *folder, found->endpoint, resources, options);
  if (!node) {
    if (!found->folder) folder->remove();
    return failed(common, node.error());
  }
  if (!found->folder) {  // the session is for the drivers of this host
    auto info = folder->info();
    if (info) info->node = node->node;
    const auto written = info ? folder->write_info(*info) : Result<void>(fail(info.error()));
    if (!written) {
      (void)stop_session(*folder, 1);
      return failed(common, written.error());
    }
  }
  const auto credentials = folder->credentials();
  const bool over_hosts = credentials && !credentials->host.empty();
  if (common.json) {
    print_json({{"schema", "shoal.start/1"},
                {"address", found->endpoint},
                {"node", node->id},
                {"network", over_hosts ? network_of(*credentials) : json()},
                {"session", folder->path()},
                {"new_session", !found->folder.has_value()}});
  } else {
    print(stdout, "Node {} joined {} with {}.\n", node->id, found->endpoint, resources.to_string());
    if (over_hosts) print(stdout, "  network  {}\n", describe_network(*credentials));
  }
  std::fflush(stdout);
  return options.block ? run_until_node_ends(common, *folder, node->pid, !found->folder) : kOk;
}

void add_node_options(CLI::App& verb, StartOptions& options) {
  verb.add_option("--num-cpus", options.num_cpus, "Logical CPUs that the node offers (default: those of the machine)")->check(amount());
  verb.add_option("--num-gpus", options.num_gpus, "GPUs that the node offers")->check(amount());
  verb.add_option("--memory", options.memory, "Bytes of memory that the node offers")->check(amount());
  verb.add_option_function<std::uint64_t>(
      "--object-store-memory",
      [&options](std::uint64_t bytes) { options.resources.push_back("object_store_memory=" + std::to_string(bytes)); },
      "Bytes of memory that objects may take before they are moved to files (default: 30 % of the machine's)");
  verb.add_option("--object-spilling-directory", options.spill_folder,
                  "Folder on a disk for these files (default: the session's folder, or /var/tmp where that is in memory)")
      ->check(CLI::ExistingDirectory);
  verb.add_option(
          "--memory-usage-threshold", options.limits.memory_threshold,
          "Share of the memory in use beyond which the node ends a worker; 0 or 1: never (default: $SHOAL_MEMORY_USAGE_THRESHOLD, or 0.95)")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--head-absence-limit", options.limits.head_absence,
                  "With --address: seconds without a head after which the node ends, and its workers; 0: never (default: "
                  "$SHOAL_HEAD_ABSENCE_LIMIT, or 600)");
  verb.add_option("--resource", options.resources, "Another resource that the node offers: NAME=AMOUNT; may be repeated");
  verb.add_option("--label", options.labels, "Label of the node, which actors may request: NAME=VALUE; may be repeated");
  verb.add_option_function<std::string>(
      "--resources",
      [&options](const std::string& text) {
        const auto words = amounts_of_json(text);
        if (!words) throw CLI::ValidationError(words.error().to_string());
        options.resources.insert(options.resources.end(), words->begin(), words->end());
      },
      "The same as --resource, as JSON: {\"NAME\": AMOUNT}");
  verb.add_option_function<std::string>(
      "--labels",
      [&options](const std::string& text) {
        const auto words = words_of_list(text);
        options.labels.insert(options.labels.end(), words.begin(), words.end());
      },
      "The same as --label, in one word: NAME=VALUE,NAME=VALUE");
  verb.add_option("--order", options.order, "Position among the nodes: `shoal submit --num-workers` places ranks in this order");
  verb.add_flag("--block", options.block, "Keep running; a signal then ends the processes that were started");
  for (const char* name : {"--min-worker-port", "--max-worker-port", "--node-manager-port", "--object-manager-port"}) {
    verb.add_option_function<std::uint16_t>(
        name, [name](std::uint16_t) { print(stderr, "shoal: warning: {} has no effect: only the head's port can be chosen\n", name); },
        "An option of Ray, without effect");
  }
}

void add_head_options(CLI::App& verb, StartOptions& options) {
  verb.add_option("--dashboard-port", options.http_port,
                  "Port of the head's HTTP interface; 0 chooses a free one (default: 8265, or a free one if that is taken)");
  verb.add_option("--dashboard-host", options.dashboard_host, "Address of the HTTP interface, which has to be a loopback address");
  verb.add_option("--include-dashboard", options.http, "Start the head with an HTTP interface")->capture_default_str();
  verb.add_option("--runs", options.runs)->group("");
  verb.add_option(
      "--store", options.store,
      "Store of the head's decisions. For a cluster with several heads: etcds://HOST:PORT[,HOST:PORT]/NAME (TLS), or etcd://.. on "
      "this host (default: a database in the session's folder)");
  add_store_options(verb, options.store_access);
  verb.add_flag("--from-token", options.from_token,
                "Take the token of --token-file, and derive the certificates from it: hosts that have the token know their fingerprint");
  verb.add_option("--authority", options.authority,
                  "Copy of the folder tls/ of the first head's session, which is a secret, as the token is; every further head with --host "
                  "needs it");
  verb.add_option("--durability", options.durability,
                  "process: decisions survive the death of any process, but a power cut loses the last 100 ms; fsync: each decision waits "
                  "for the disk")
      ->check(CLI::IsMember({"process", "fsync"}))
      ->capture_default_str();
}

// Refuses options that exclude or need each other.
void check_options(const CLI::App& verb, const StartOptions& options) {
  const auto given = [&](const char* name) { return verb.count(name) > 0; };
  if (!options.store.empty() && given("--durability")) {
    throw CLI::ValidationError("--durability is of the database in the session's folder; etcd waits for its disks by itself");
  }
  if (!options.authority.empty() && (options.store.empty() || (options.host.empty() && options.interface.empty()))) {
    throw CLI::ValidationError("--authority is of a head of several, over hosts: say --head --store etcds://.. --host ADDRESS");
  }
  if (options.store.empty() &&
      (given("--store-ca-file") || given("--store-cert-file") || given("--store-key-file") || given("--store-in-clear-text"))) {
    throw CLI::ValidationError(
        "--store-ca-file, --store-cert-file, --store-key-file and --store-in-clear-text are of a store in etcd: say --store");
  }
  if (!options.head && (given("--store") || given("--durability"))) {
    throw CLI::ValidationError("--store and --durability are of a head: say --head");
  }
  if (!options.head && !given("--address")) throw CLI::ValidationError("say --head, or --address HOST:PORT");
  if (!options.host.empty() && !options.interface.empty())
    throw CLI::ValidationError("--host and --interface exclude each other: the interface has the address");
  if (options.head && given("--address")) throw CLI::ValidationError("--head and --address exclude each other");
}

}  // namespace

int start(const Common& common, const StartOptions& options) {
  const auto resources = offered_resources(options);
  const char* const clear_text = "SHOAL_STORE_IN_CLEAR_TEXT";
  if (const auto right = check_switch(clear_text, common.environment.get(clear_text)); !right) {
    print_error(right.error(), common.json);
    return kUsage;
  }
  if (const auto labels = parse_labels(options.labels); !labels) {
    print_error(labels.error(), common.json);
    return kUsage;
  }
  if (!resources) {
    print_error(resources.error(), common.json);
    return kUsage;
  }
  if (options.block) watch_signals();
  return options.head ? start_head(common, options, *resources) : start_joining(common, options, *resources);
}

void add_start(CommandLine& line) {
  auto& options = line.own<StartOptions>();
  options.store_access = store_access(line.environment());
  auto* verb = line.add_verb("start", "Start a cluster (--head), or add a node to one (--address HOST:PORT)");
  verb->add_flag("--head", options.head, "Start a head and a node here");
  verb->add_option("--host,--node-ip-address", options.host,
                   "Address at which other hosts reach this one, with TLS (default: loopback only for a head; for a host that joins, its "
                   "address on the way to the head)");
  verb->add_option("--interface", options.interface,
                   "Network interface of this host for control and data, by name (eth1) or address; replaces --host");
  verb->add_flag("--data-tls", options.data_tls,
                 "With --head: encrypt the data that ranks on several hosts exchange (TLS), for networks that are not trusted");
  verb->add_option("--port", options.port, "Port of the head; 0 chooses a free one")->capture_default_str();
  add_node_options(*verb, options);
  add_head_options(*verb, options);
  line.on_run(verb, [verb, &options](const Common& common) {
    check_options(*verb, options);
    return start(common, options);
  });
}

}  // namespace shoal::scheduler::cli
