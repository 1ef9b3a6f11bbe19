// The verbs in the order of `shoal --help`.
#pragma once

#include "scheduler/cli/verbs/doctor.h"
#include "scheduler/cli/verbs/drain.h"
#include "scheduler/cli/verbs/get.h"
#include "scheduler/cli/verbs/job.h"
#include "scheduler/cli/verbs/list.h"
#include "scheduler/cli/verbs/logs.h"
#include "scheduler/cli/verbs/memory.h"
#include "scheduler/cli/verbs/metrics.h"
#include "scheduler/cli/verbs/microbenchmark.h"
#include "scheduler/cli/verbs/stack.h"
#include "scheduler/cli/verbs/start.h"
#include "scheduler/cli/verbs/status.h"
#include "scheduler/cli/verbs/stop.h"
#include "scheduler/cli/verbs/submit.h"
#include "scheduler/cli/verbs/summary.h"
#include "scheduler/cli/verbs/timeline.h"

namespace shoal::scheduler::cli {

// Verbs whose action nothing else calls have no header.
void add_chaos(CommandLine& line);
void add_checkpoint(CommandLine& line);
void add_health_check(CommandLine& line);
void add_scale(CommandLine& line);

inline constexpr void (*kVerbs[])(CommandLine&) = {
    add_start,          add_stop,   add_status,   add_health_check, add_stack,      add_memory, add_metrics,    add_timeline,
    add_microbenchmark, add_cordon, add_uncordon, add_drain,        add_drain_node, add_list,   add_get,        add_describe,
    add_summary,        add_logs,   add_submit,   add_job,          add_scale,      add_chaos,  add_checkpoint, add_doctor,
};

}  // namespace shoal::scheduler::cli
