// health-check: whether the cluster answers, and how many nodes it has.
// The pattern for a new verb (scheduler/cli/README.md).
#include <cstdio>

#include "scheduler/cli/cluster.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

// The action. `common` has the options of all verbs: the cluster, --json. Data goes to stdout, errors to stderr (failed), and the result is
// an exit code: kOk, kFailed or another one of output.h.
int health_check(const Common& common) {
  auto cluster = connect_cluster(common);  // its `head` answers requests
  if (!cluster) return failed(common, cluster.error());
  const auto s = cluster->head->request_for<actors::ClusterStatus>(actors::Method::kStatus, {});
  if (!s) return failed(common, s.error());
  if (common.json) {
    print_json({{"schema", "shoal.health/1"}, {"address", cluster->address}, {"nodes", s->num_nodes}});
  } else {
    print(stdout, "{} answers; {} nodes live.\n", cluster->address, s->num_nodes);
  }
  return s->num_nodes > 0 ? kOk : kFailed;
}

}  // namespace

// Options: a struct from line.own(Options()), whose fields verb->add_option() and verb->add_flag() fill (status.cc).
void add_health_check(CommandLine& line) {
  line.on_run(line.add_verb("health-check", "Exit with 0 if the cluster answers and has a node"), health_check);
}

}  // namespace shoal::scheduler::cli
