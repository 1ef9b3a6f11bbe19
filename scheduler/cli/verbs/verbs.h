// The verbs, each once, in the order of `shoal --help`.
#pragma once

// clang-format off
#define SHOAL_VERBS(VERB) \
  VERB(run) VERB(launch) VERB(ls) VERB(show) VERB(top) VERB(diff) VERB(dashboard) \
  VERB(start) VERB(stop) VERB(status) VERB(health_check) VERB(stack) VERB(memory) VERB(metrics) VERB(timeline) VERB(microbenchmark) \
  VERB(cordon) VERB(uncordon) VERB(drain) VERB(drain_node) \
  VERB(list) VERB(get) VERB(describe) VERB(summary) VERB(logs) \
  VERB(submit) VERB(job) VERB(scale) VERB(chaos) VERB(checkpoint) VERB(cpp) VERB(migrate) VERB(check) \
  VERB(doctor) VERB(explain) VERB(completion) VERB(config)
// clang-format on

namespace shoal::scheduler::cli {

class CommandLine;

#define SHOAL_VERB(name) void add_##name(CommandLine& line);  // in a source of this folder
SHOAL_VERBS(SHOAL_VERB)
#undef SHOAL_VERB

inline void add_verbs(CommandLine& line) {
#define SHOAL_VERB(name) add_##name(line);
  SHOAL_VERBS(SHOAL_VERB)
#undef SHOAL_VERB
}

}  // namespace shoal::scheduler::cli
