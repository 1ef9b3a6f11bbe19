#include "scheduler/cli/verbs/role.h"

#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "scheduler/cli/amounts.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/session.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

using actors::SessionFolder;

void add_store_options(CLI::App& app, etcd::Access& access) {
  app.add_option(
      "--store-ca-file", access.tls.authority,
      "With --store etcds://..: certificate of the authority that signed etcd's certificate (PEM; default: $SHOAL_STORE_CA_FILE)");
  app.add_option("--store-cert-file", access.tls.certificate,
                 "With --store etcds://..: certificate that the heads show to etcd (default: $SHOAL_STORE_CERT_FILE)");
  app.add_option("--store-key-file", access.tls.key, "With --store etcds://..: key of that certificate (default: $SHOAL_STORE_KEY_FILE)");
  app.add_flag("--store-in-clear-text", access.in_clear_text,
               "Allow --store etcd://.. on other hosts. Everyone who reaches that etcd can then run programs in this cluster (default: "
               "$SHOAL_STORE_IN_CLEAR_TEXT, if it is 1)");
}

// The command line of a role, as start_role() writes it.
int run_role(const Environment& environment, int argc, char** argv) {
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
  app.add_option("--runs", http.runs);
  app.add_flag("--keeps-head", keeps_head);
  app.add_option("--store", store);
  etcd::Access store_access;
  add_store_options(app, store_access);
  app.add_flag("--fsync", fsync);
  double threshold = -1;
  std::optional<unsigned> absence;
  std::optional<std::uint16_t> order;
  app.add_option("--order", order);
  app.add_option("--head-absence-limit", absence);
  app.add_option("--memory-usage-threshold", threshold);
  const std::string role = argc > 2 ? argv[2] : "";
  CLI11_PARSE(app, argc - 2, argv + 2);
  auto memory = role == "head" ? MemoryRule() : memory_rule(environment);
  if (!memory) return refuse_role(ready_fd, memory.error());
  if (threshold >= 0) memory->threshold = threshold;
  std::map<std::string, double> defaults;
  if (role == "local") defaults["GPU"] = static_cast<double>(detect_resources().units("GPU")) / actors::Resources::kUnit;
  const auto stopped = stopped_limit(environment);
  if (!stopped) return refuse_role(ready_fd, stopped.error());
  auto without_head = head_absence_limit(environment);
  if (!without_head) return refuse_role(ready_fd, without_head.error());
  if (absence) without_head = std::chrono::seconds(*absence);
  const auto amounts = parse_amounts(resources, std::move(defaults));
  if (!amounts) {
    print_error(amounts.error(), false);
    return refuse_role(ready_fd, amounts.error());
  }
  const auto label_map = parse_labels(labels);
  if (!label_map) return refuse_role(ready_fd, label_map.error());
  http.on = http_port->count() > 0;
  const std::string home = environment.get("HOME");
  http.around = {python, environment.get("PATH"), environment.get("PYTHONPATH"), home.empty() ? "/" : home};
  if (role == "head") return run_head({session, host, port, ready_fd, http, store, fsync, store_access});
  if (role == "node") {
    return run_node(
        {session, head, *amounts, *label_map, python, keeps_head, ready_fd, spill_folder, *memory, *stopped, *without_head, order});
  }
  if (role == "local") {
    if (session.empty()) {
      const auto root = SessionFolder::root(environment.get("SHOAL_HOME").c_str());
      const auto folder = root ? new_session(*root) : Result<SessionFolder>(fail(root.error()));
      if (!folder) return refuse_role(ready_fd, folder.error());
      session = folder->path();
    }
    return run_local({session, *amounts, *label_map, python, owner, remove_folder, ready_fd, http, spill_folder, *memory, *stopped});
  }
  print(stderr, "no such role: {}\n", role);
  return kUsage;
}

}  // namespace shoal::scheduler::cli
