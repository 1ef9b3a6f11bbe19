#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <map>

#include <fmt/format.h>

#include "runtime/process/process.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/output.h"
#include "scheduler/roles/roles.h"

extern char** environ;

namespace shoal::scheduler::cli {

using actors::Method;
using actors::SessionFolder;
using nlohmann::json;

Result<SessionFolder> new_session(const std::string& root) {
  const auto random = runtime::make_real_random();
  return SessionFolder::create(root, runtime::Token::random(*random), static_cast<std::int64_t>(std::time(nullptr)) * 1000, random->next());
}

Result<actors::StartedRole> start_role(const std::string& self, const SessionFolder& folder, std::vector<std::string> words) {
  actors::RoleStart start;
  start.program = self;
  // What a role says outside its log is a last word: keep it.
  const std::string last_words = folder.logs() + "/" + words[0] + ".stderr";
  start.err = Fd(open(last_words.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
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
  if (keeps_head) words.push_back("--keeps-head");
  return start_role(common.self, folder, std::move(words));
}

// Ends one cluster: by its head's word, then by its pids. Returns how many processes had to be killed.
Result<int> stop_one(const SessionFolder& folder, double grace_s) {
  const auto members = folder.processes();
  (void)folder.set_ending();  // on a full disk, too, what runs can be ended
  if (const auto token = folder.token()) {
    Context context(*token);
    if (const auto info = folder.info()) {
      if (const auto client = Client::connect(context, info->head_local, runtime::Duration::zero())) {
        (void)(*client)->ask(Method::kShutdown, {}, std::chrono::seconds(1));
      }
    }
  }
  const auto wait_for_end = [&](double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!folder.processes().empty() && std::chrono::steady_clock::now() < end) usleep(2'000);
    return folder.processes().empty();
  };
  // Without a head the others are told by a signal.
  for (const auto& p : folder.processes()) kill(p.pid, SIGTERM);
  if (wait_for_end(grace_s)) return 0;
  int killed = 0;
  for (const auto& p : folder.processes()) {
    kill(p.pid, SIGKILL);
    ++killed;
  }
  if (!wait_for_end(2)) return fail(internal("a process of " + folder.name() + " cannot be killed"));
  return killed;
}

int start_head(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto fail_with = [&](const Error& e) {
    print_error(e, common.json);
    return exit_code(e);
  };
  if (options.host != "127.0.0.1" && options.host != "localhost") {
    return fail_with(
        unimplemented("a head listens on loopback only, until connections between hosts are encrypted").with_hint("leave --host out"));
  }
  const auto folder = new_session(common.target.root);
  if (!folder) return fail_with(folder.error());
  const auto give_up = [&](const Error& e) {  // half a cluster is none
    (void)stop_one(*folder, 1);
    return fail_with(e);
  };
  std::vector<std::string> words = {"head", "--port", std::to_string(options.port), "--python", common.python};
  if (options.http) words.insert(words.end(), {"--http-port", std::to_string(options.http_port)});
  if (options.http && options.http_or_any) words.push_back("--http-or-any");
  const auto head = start_role(common.self, *folder, std::move(words));
  if (!head) {
    folder->remove();
    return fail_with(head.error());
  }
  const auto node = start_node(common, *folder, head->head_local, resources, options, true);
  if (!node) return give_up(node.error());
  // Ready means: it can place something.
  const auto token = folder->token();
  if (!token) return give_up(token.error());
  Context context(*token);
  const auto client = Client::connect(context, head->head_local);
  if (!client) return give_up(client.error());
  const auto registered = [&] {
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
  const auto info = folder->info();
  const std::string http = info ? info->http : "";
  if (common.json) {
    std::printf("%s\n", json({{"schema", "shoal.start/1"},
                              {"address", address},
                              {"local", head->head_local},
                              {"session", folder->path()},
                              {"http", http},
                              {"resources", to_json(resources)}})
                            .dump()
                            .c_str());
  } else {
    std::printf(
        "Shoal runs at %s with %s.\n  session  %s\n%s  next     shoal submit train.py   |   shoal status "
        "  |   shoal stop --address %s\n",
        address.c_str(), resources.to_string().c_str(), folder->path().c_str(), http.empty() ? "" : ("  http     " + http + "\n").c_str(),
        address.c_str());
  }
  return kOk;
}

int start_joining(const Common& common, const StartOptions& options, const actors::Resources& resources) {
  const auto fail_with = [&](const Error& e) {
    print_error(e, common.json);
    return exit_code(e);
  };
  const auto found = find_cluster(common.target, true);
  if (!found) return fail_with(found.error());
  const auto token = found->folder.token();
  if (!token) return fail_with(token.error());
  {  // the head's word first: a node would only keep trying
    Context context(*token);
    const auto client = Client::connect(context, found->endpoint);
    if (!client) return fail_with(client.error());
  }
  const auto node = start_node(common, found->folder, found->endpoint, resources, options);
  if (!node) return fail_with(node.error());
  if (common.json) {
    std::printf("%s\n",
                json({{"schema", "shoal.start/1"}, {"address", found->endpoint}, {"node", node->id}, {"session", found->folder.path()}})
                    .dump()
                    .c_str());
  } else {
    std::printf("Node %s joined %s with %s.\n", node->id.c_str(), found->endpoint.c_str(), resources.to_string().c_str());
  }
  return kOk;
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
    folders = {found->folder};
  }
  int code = kOk;
  json stopped = json::array();
  for (const auto& folder : folders) {
    const auto killed = stop_one(folder, options.grace_s);
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
