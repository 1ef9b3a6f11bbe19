// The verbs in the order of `shoal --help`.
#pragma once

namespace shoal::scheduler::cli {

class CommandLine;

// A verb whose action another one calls has a header of its own.
void add_start(CommandLine& line);
void add_stop(CommandLine& line);
void add_status(CommandLine& line);
void add_health_check(CommandLine& line);
void add_stack(CommandLine& line);
void add_memory(CommandLine& line);
void add_metrics(CommandLine& line);
void add_timeline(CommandLine& line);
void add_microbenchmark(CommandLine& line);
void add_dashboard(CommandLine& line);
void add_cordon(CommandLine& line);
void add_uncordon(CommandLine& line);
void add_drain(CommandLine& line);
void add_drain_node(CommandLine& line);
void add_list(CommandLine& line);
void add_get(CommandLine& line);
void add_describe(CommandLine& line);
void add_summary(CommandLine& line);
void add_logs(CommandLine& line);
void add_run(CommandLine& line);
void add_launch(CommandLine& line);
void add_ls(CommandLine& line);
void add_show(CommandLine& line);
void add_top(CommandLine& line);
void add_diff(CommandLine& line);
void add_submit(CommandLine& line);
void add_job(CommandLine& line);
void add_scale(CommandLine& line);
void add_chaos(CommandLine& line);
void add_checkpoint(CommandLine& line);
void add_cpp(CommandLine& line);
void add_migrate(CommandLine& line);
void add_check(CommandLine& line);
void add_doctor(CommandLine& line);
void add_explain(CommandLine& line);
void add_completion(CommandLine& line);
void add_config(CommandLine& line);

inline constexpr void (*kVerbs[])(CommandLine&) = {
    add_run,    add_launch,   add_ls,           add_show,       add_top,    add_diff,       add_dashboard, add_start,
    add_stop,   add_status,   add_health_check, add_stack,      add_memory, add_metrics,    add_timeline,  add_microbenchmark,
    add_cordon, add_uncordon, add_drain,        add_drain_node, add_list,   add_get,        add_describe,  add_summary,
    add_logs,   add_submit,   add_job,          add_scale,      add_chaos,  add_checkpoint, add_cpp,       add_migrate,
    add_check,  add_doctor,   add_explain,      add_completion, add_config,
};

}  // namespace shoal::scheduler::cli
