#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "actors/wire/joining.h"
#include "runtime/process/process.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/output.h"
#include "scheduler/roles/roles.h"

extern char** environ;

namespace shoal::scheduler::cli {

using actors::Method;
using actors::SessionFolder;
using nlohmann::json;

Result<SessionFolder> new_session(const std::string& root, std::optional<runtime::Token> token) {
  const auto random = runtime::make_real_random();
  timespec now{};
  std::timespec_get(&now, TIME_UTC);
  return SessionFolder::create(root, token.value_or(runtime::Token::random(*random)),
                               static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000, random->next());
}

Result<actors::StartedRole> start_role(const std::string& self, const SessionFolder& folder, std::vector<std::string> words) {
  actors::RoleStart start;
  start.program = self;
  // A role's stderr holds its messages from outside the log, such as a crash: keep it.
  const std::string stderr_path = folder.logs() + "/" + words[0] + ".stderr";
  start.err = Fd(open(stderr_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  words.insert(words.end(), {"--session", folder.path()});
  start.words = std::move(words);
  for (char** e = environ; *e != nullptr; ++e) start.env.emplace_back(*e);
  start.timeout = std::chrono::seconds(10);
  auto started = actors::start_role(std::move(start));
  if (!started && started.error().hint().empty()) return fail(Error(started.error()).with_hint("see " + folder.logs()));
  return started;
}

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
  return actors::Resources::of(amounts);
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

Result<actors::Resources> parse_resources(const StartOptions& o) {
  const actors::Resources has = detect_resources();
  std::map<std::string, double> amounts;
  for (const auto& [name, units] : has.all()) amounts[name] = static_cast<double>(units) / actors::Resources::kUnit;
  if (o.num_cpus >= 0) amounts["CPU"] = o.num_cpus;
  if (o.num_gpus >= 0) amounts["GPU"] = o.num_gpus;
  if (o.memory >= 0) amounts["memory"] = o.memory;
  return parse_amounts(o.resources, std::move(amounts));
}

namespace {

std::vector<std::string> resource_words(const actors::Resources& resources) {
  std::vector<std::string> out;
  for (const auto& [name, units] : resources.all()) {
    out.push_back("--resource");
    out.push_back(fmt::format("{}={}", name, static_cast<double>(units) / actors::Resources::kUnit));
  }
  return out;
}

Result<actors::StartedRole> start_node(const Common& common, const SessionFolder& folder, const std::string& head,
                                       const actors::Resources& resources, const StartOptions& options, bool keeps_head = false) {
  std::vector<std::string> words = {"node", "--head", head, "--python", common.python};
  for (const auto& w : resource_words(resources)) words.push_back(w);
  for (const auto& label : options.labels) words.insert(words.end(), {"--label", label});
  if (options.memory_threshold >= 0) words.insert(words.end(), {"--memory-usage-threshold", std::to_string(options.memory_threshold)});
  if (keeps_head) words.push_back("--keeps-head");
  if (!options.spill_folder.empty()) words.insert(words.end(), {"--spill-folder", std::filesystem::absolute(options.spill_folder)});
  return start_role(common.self, folder, std::move(words));
}

// Ends one cluster: first by a request to its head, then by signals to its processes. Returns the number of processes killed.
Result<int> stop_one(const SessionFolder& folder, double grace_s, bool force = false) {
  (void)folder.set_ending();  // best effort: a full disk must not prevent stopping
  // When the head runs on another host, only this host's processes end.
  const auto members = folder.processes();
  const auto known = folder.info();
  const bool leads =
      (known && !known->head_local.empty()) || std::any_of(members.begin(), members.end(), [](const auto& p) { return p.role != "node"; });
  if (const auto credentials = force || !leads ? Result<actors::Credentials>(fail(cancelled("not in order"))) : folder.credentials()) {
    Context context(*credentials);
    if (const auto info = folder.info()) {
      if (const auto client = Client::connect(context, info->way(), runtime::Duration::zero())) {
        (void)(*client)->ask(Method::kShutdown, {}, std::chrono::seconds(1));
      }
    }
  }
  const auto wait_for_end = [&](double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!folder.processes().empty() && std::chrono::steady_clock::now() < end) usleep(2'000);
    return folder.processes().empty();
  };
  // Processes that the head did not end get a signal.
  for (const auto& p : folder.processes()) {
    if (!force) kill(p.pid, SIGTERM);
  }
  if (wait_for_end(force ? 0 : grace_s)) return 0;
  int killed = 0;
  for (const auto& p : folder.processes()) {
    kill(p.pid, SIGKILL);
    ++killed;
  }
  if (!wait_for_end(2)) return fail(internal("a process of " + folder.name() + " cannot be killed"));
  return killed;
}

// Runs until this host's node ends or a signal arrives. `whole`: then ends the rest of the session, too.
int stay(const Common& common, const SessionFolder& folder, pid_t node, bool whole) {
  static volatile std::sig_atomic_t asked = 0;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) std::signal(number, [](int) { asked = 1; });
  if (!common.json) std::printf("It ends with this command (--block): Ctrl-C or SIGTERM.\n");
  std::fflush(stdout);
  const auto there = [&] {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {  // reaps orphans when this is a container's first process
    }
    const auto members = folder.processes();
    return std::any_of(members.begin(), members.end(), [&](const auto& p) { return p.pid == node; });
  };
  while (!asked && there()) usleep(50'000);
  const bool in_order = asked || folder.ending();
  Result<int> ended = 0;
  if (whole) {
    ended = stop_one(folder, 5);
  } else if (asked) {
    kill(node, SIGTERM);
    for (int i = 0; i < 100 && there(); ++i) usleep(50'000);
    if (there()) kill(node, SIGKILL);
  }
  if (!in_order) print_error(unavailable("the node of this host ended unexpectedly").with_hint("see " + folder.logs()), common.json);
  if (!ended) print_error(ended.error(), common.json);
  return in_order && ended ? kOk : kFailed;
}

// Writes the certificates for a head that other hosts reach, and returns the authority's fingerprint.
Result<std::string> make_certificates(const SessionFolder& folder, const std::string& host, const std::string& authority) {
  const auto now = std::time(nullptr);
  actors::SessionTls tls;
  tls.host = host;
  if (authority.empty()) {
    SHOAL_TRY(tls.authority, runtime::make_authority("shoal " + folder.name(), runtime::valid_from(now, runtime::kAuthoritySeconds)));
  } else {
    auto read = actors::read_authority(authority);
    if (!read) {
      return fail(
          Error(read.error())
              .with_hint("--authority names a copy of the folder tls/ in the session's folder of the cluster's first head, with ca.pem "
                         "and ca.key"));
    }
    tls.authority = *std::move(read);
  }
  SHOAL_TRY(tls.own, runtime::make_certificate(tls.authority, host, runtime::valid_from(now, runtime::kCertificateSeconds)));
  SHOAL_OK(folder.write_tls(tls));
  SHOAL_TRY(const auto fingerprint, runtime::Fingerprint::of(tls.authority.certificate));
  return fingerprint.to_string();
}

int start_head(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto fail_with = [&](const Error& e) {
    print_error(e, common.json);
    return exit_code(e);
  };
  const std::string host = options.host.empty() ? "127.0.0.1" : options.host;
  const bool over_hosts = !runtime::is_loopback(host);
  if (host == "0.0.0.0" || host == "::") {
    return fail_with(invalid_argument("--host " + host + " is every address of this host, and none that others could be told")
                         .with_hint("name the address at which other hosts reach this one"));
  }
  if (!options.dashboard_host.empty() && !runtime::is_loopback(options.dashboard_host)) {
    return fail_with(unimplemented("the HTTP interface is on loopback only: it speaks no TLS")
                         .with_hint("leave --dashboard-host out, and reach it from elsewhere with: ssh -L 8265:127.0.0.1:8265 " + host));
  }
  std::optional<runtime::Token> shared;
  if (!options.store.empty()) {
    if (!common.target.token.empty() || !common.target.token_file.empty()) {
      const auto credentials = credentials_of(common.target);
      if (!credentials) return fail_with(credentials.error());
      shared = credentials->token;
    }
  }
  const auto folder = new_session(common.target.root, shared);
  if (!folder) return fail_with(folder.error());
  std::string fingerprint;
  if (over_hosts) {
    auto made = make_certificates(*folder, host, options.authority);
    if (!made) {
      folder->remove();
      return fail_with(made.error());
    }
    fingerprint = *std::move(made);
  }
  const auto give_up = [&](const Error& e) {  // removes a half-started cluster
    (void)stop_one(*folder, 1);
    return fail_with(e);
  };
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
  if (options.fsync) words.push_back("--fsync");
  if (options.http) words.insert(words.end(), {"--http-port", std::to_string(options.http_port)});
  if (options.http && options.http_or_any) words.push_back("--http-or-any");
  const auto head = start_role(common.self, *folder, std::move(words));
  if (!head) {
    folder->remove();
    return fail_with(head.error());
  }
  auto info = folder->info();
  if (!info) return give_up(info.error());
  const auto node = start_node(common, *folder, info->way(), resources, options, true);
  if (!node) return give_up(node.error());
  // Ready means that the cluster can place work: the node has registered.
  const auto credentials = folder->credentials();
  if (!credentials) return give_up(credentials.error());
  Context context(*credentials);
  auto client = Client::connect(context, info->way());
  if (!client) return give_up(client.error());
  const auto registered = [&] {
    if ((*client)->closed()) (void)(*client)->reconnect(runtime::Duration::zero());
    if (!info->store.empty()) {  // a shared store may hold other nodes
      const auto nodes = (*client)->list(actors::ListRequest::What::kNodes);
      return nodes && std::any_of(nodes->nodes.begin(), nodes->nodes.end(), [&](const auto& n) { return to_string(n.id) == node->id; });
    }
    const auto status = (*client)->ask_for<actors::ClusterStatus>(Method::kStatus, {});
    return status && status->num_nodes > 0;
  };
  const auto end = context.clock->now() + std::chrono::seconds(10);
  while (!registered()) {
    if (context.clock->now() >= end) {
      return give_up(deadline_exceeded("the node did not register with the head").with_hint("see " + folder->logs()));
    }
    context.run_until([] { return false; }, std::chrono::milliseconds(2));
  }
  const std::string address = head->head;
  info = folder->info();
  const std::string http = info ? info->http : "";
  const std::string leader = info && !info->heads.empty() ? info->heads.front() : address;
  if (common.json) {
    std::printf("%s\n", json({{"schema", "shoal.start/1"},
                              {"address", address},
                              {"local", head->head_local},
                              {"session", folder->path()},
                              {"http", http},
                              {"ca_fingerprint", fingerprint},
                              {"leader", leader},
                              {"resources", to_json(resources)}})
                            .dump()
                            .c_str());
  } else if (leader != address) {
    std::printf("A head at %s waits behind the one at %s, with a node with %s.\n  session  %s\n", address.c_str(), leader.c_str(),
                resources.to_string().c_str(), folder->path().c_str());
  } else {
    std::printf(
        "Shoal runs at %s with %s.\n  session  %s\n%s  next     shoal submit train.py   |   shoal status "
        "  |   shoal stop --address %s\n",
        address.c_str(), resources.to_string().c_str(), folder->path().c_str(),
        http.empty() ? "" : ("  http     " + http + "   (token: " + folder->path() + "/http-token)\n").c_str(), address.c_str());
    if (over_hosts) {
      std::printf(
          "  join     shoal start --address %s --token-file FILE --ca-fingerprint %s\n           on another host, where FILE is a copy of "
          "%s/token\n",
          address.c_str(), fingerprint.c_str(), folder->path().c_str());
    }
  }
  std::fflush(stdout);
  return options.block ? stay(common, *folder, node->pid, true) : kOk;
}

// Creates a session in this root for a cluster of this host that was started in another root. Loopback needs no certificates.
Result<SessionFolder> join_here(const Common& common, const Found& found) {
  Context context(found.credentials);
  SHOAL_TRY(const auto client, connect_head(context, found));  // checks the token
  SHOAL_TRY(const auto folder, new_session(common.target.root, found.credentials.token));
  const auto filled = folder.write_info({common.target.address, "", std::int64_t{1000} * std::time(nullptr), "", ""});
  if (filled) return folder;
  folder.remove();
  return fail(filled.error());
}

// Creates a session of this host for a remote cluster, with its token and a certificate that the head signed. On failure the session is
// removed.
Result<SessionFolder> join(const Common& common, const StartOptions& options, const Found& found) {
  SHOAL_TRY(const auto addresses, runtime::parse_endpoints(common.target.address));
  const auto& credentials = found.credentials;
  const bool here = std::all_of(addresses.begin(), addresses.end(), [](const auto& a) { return runtime::is_loopback(a.host); });
  if (here && !credentials.tls) return join_here(common, found);
  if (!credentials.tls) {
    return fail(invalid_argument("a cluster on another host is joined with the fingerprint of its certificates")
                    .with_reason("TlsRequired")
                    .with_hint("--ca-fingerprint sha256:.. as `shoal start --head` printed it"));
  }
  std::string host = options.host;
  if (host.empty()) {
    SHOAL_TRY(host, runtime::own_address_towards(addresses[0].host));
  }
  SHOAL_TRY(const auto asked, runtime::make_certificate_request("shoal " + host));
  Context context(credentials);
  SHOAL_TRY(const auto client, connect_head(context, found));
  SHOAL_TRY(const auto answer,
            client->ask_for<actors::SignedCertificate>(actors::kSignCertificate, to_bytes(actors::SignCertificate{asked.request, host})));
  // The answer holds the node's certificate, then the authority's.
  const auto second = answer.certificate.rfind("-----BEGIN CERTIFICATE-----");
  actors::SessionTls tls{{second == std::string::npos ? "" : answer.certificate.substr(second), ""}, {answer.certificate, asked.key}, host};
  SHOAL_OK(runtime::Tls::make(credentials.tls->authority(), tls.own));
  SHOAL_TRY(const auto folder, new_session(common.target.root, credentials.token));
  const auto filled = [&]() -> Result<void> {
    SHOAL_OK(folder.write_tls(tls));
    return folder.write_info({common.target.address, "", std::int64_t{1000} * std::time(nullptr), "", ""});
  }();
  if (filled) return folder;
  folder.remove();
  return fail(filled.error());
}

int start_joining(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto fail_with = [&](const Error& e) {
    print_error(e, common.json);
    return exit_code(e);
  };
  const auto found = find_cluster(common.target, true);
  if (!found) return fail_with(found.error());
  if (found->folder) {  // contacts the head first: a node would only keep retrying
    Context context(found->credentials);
    const auto client = connect_head(context, *found);
    if (!client) return fail_with(client.error());
  }
  const auto folder = found->folder ? Result<SessionFolder>(*found->folder) : join(common, options, *found);
  if (!folder) return fail_with(folder.error());
  const auto node = start_node(common, *folder, found->endpoint, resources, options);
  if (!node) {
    if (!found->folder) folder->remove();
    return fail_with(node.error());
  }
  if (!found->folder) {  // for the drivers of this host
    auto info = folder->info();
    if (info) info->node = node->node;
    const auto written = info ? folder->write_info(*info) : Result<void>(fail(info.error()));
    if (!written) {
      (void)stop_one(*folder, 1);
      return fail_with(written.error());
    }
  }
  if (common.json) {
    std::printf(
        "%s\n",
        json({{"schema", "shoal.start/1"}, {"address", found->endpoint}, {"node", node->id}, {"session", folder->path()}}).dump().c_str());
  } else {
    std::printf("Node %s joined %s with %s.\n", node->id.c_str(), found->endpoint.c_str(), resources.to_string().c_str());
  }
  std::fflush(stdout);
  return options.block ? stay(common, *folder, node->pid, !found->folder) : kOk;
}

}  // namespace

int start(const Common& common, const StartOptions& options) {
  const auto resources = parse_resources(options);
  if (const auto labels = parse_labels(options.labels); !labels) {
    print_error(labels.error(), common.json);
    return kUsage;
  }
  if (!resources) {
    print_error(resources.error(), common.json);
    return kUsage;
  }
  return options.head ? start_head(common, options, *resources) : start_joining(common, options, *resources);
}

int stop(const Common& common, const StopOptions& options) {
  std::vector<SessionFolder> folders;
  if (options.all) {
    folders = SessionFolder::running(common.target.root);
  } else {
    const auto found = find_cluster(common.target, true);
    if (!found) {
      print_error(found.error(), common.json);
      return found.error().reason() == "SeveralClusters" ? kUsage
             : found.error().reason() == "NoCluster"     ? kNotFoundExit
                                                         : exit_code(found.error());
    }
    if (!found->folder) {
      print_error(invalid_argument(found->address + " is not of this host")
                      .with_hint("run `shoal stop` where it was started; on a host that joined it, that ends what it has there"),
                  common.json);
      return kUsage;
    }
    folders = {*found->folder};
  }
  int code = kOk;
  json stopped = json::array();
  for (const auto& folder : folders) {
    const auto killed = stop_one(folder, options.grace_s, options.force);
    if (!killed) {
      print_error(killed.error(), common.json);
      code = kFailed;
      continue;
    }
    stopped.push_back({{"session", folder.path()}, {"killed", *killed}});
    if (!common.json) {
      std::printf("Stopped %s%s.\n", folder.name().c_str(),
                  *killed > 0 ? fmt::format(" ({} processes had to be killed)", *killed).c_str() : "");
    }
  }
  if (common.json) std::printf("%s\n", json({{"schema", "shoal.stop/1"}, {"stopped", stopped}}).dump().c_str());
  return code;
}

}  // namespace shoal::scheduler::cli
