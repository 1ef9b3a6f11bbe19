// logs: the output of a job, worker or actor, also after it or its node ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

struct LogsOptions {
  std::string id;  // id of a job, worker or actor, or an actor's name or class; "": the latest job
  // The kind of `id`: "actor", "worker", "job" (submission ids too), "task", "cluster" (a log file); "": any kind but task.
  std::string kind;
  pid_t pid = 0;                 // process id, instead of `id`
  std::string node_id, node_ip;  // node of `pid`, or of the log files
  bool follow = false;
  std::int64_t tail_lines = -1;  // below 0: all kept lines
  bool previous = false;         // the actor's process before the current one
  bool only_err = false;
};
int logs(const Common& common, const LogsOptions& options);

}  // namespace shoal::scheduler::cli
