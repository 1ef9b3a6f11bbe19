// stop: ends a cluster, or what it has on this host.
#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/session.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::SessionFolder;
using nlohmann::json;

namespace {

struct StopOptions {
  bool all = false;
  double grace_s = 5;
  bool force = false;  // kill at once
};

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
    const auto folder = session_of(*found);
    if (!folder) return failed(common, folder.error());
    folders = {*folder};
  }
  int code = kOk;
  json stopped = json::array();
  for (const auto& folder : folders) {
    const auto stopping = stop_session(folder, options.grace_s, options.force);
    if (!stopping) {
      print_error(stopping.error(), common.json);
      code = kFailed;
      continue;
    }
    if (const auto info = folder.info(); !stopping->in_order && info && (folder.has_tls() || !info->store.empty())) {
      print(stderr, "shoal: warning: no head of {} answered: run `shoal stop` on the other hosts as well\n", folder.name());
    }
    stopped.push_back({{"session", folder.path()}, {"killed", stopping->killed}});
    if (!common.json) {
      print(stdout, "Stopped {}{}.\n", folder.name(),
            stopping->killed > 0 ? fmt::format(" ({} processes had to be killed)", stopping->killed) : "");
    }
  }
  if (common.json) print_json({{"schema", "shoal.stop/1"}, {"stopped", stopped}});
  return code;
}

}  // namespace

void add_stop(CommandLine& line) {
  auto& options = line.own<StopOptions>();
  auto* verb = line.add_verb("stop", "End a cluster: its jobs, nodes and head");
  verb->add_flag("--all", options.all, "End every cluster of this user");
  verb->add_option("-g,--grace,--grace-period", options.grace_s, "Seconds before processes are killed")->capture_default_str();
  verb->add_flag("-f,--force", options.force, "Kill processes at once");
  line.on_run(verb, [&options](const Common& common) { return stop(common, options); });
}

}  // namespace shoal::scheduler::cli
