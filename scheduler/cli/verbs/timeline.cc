// timeline: writes the task rows as a Chrome trace.
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/inspect_nodes.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

// `file`: "-" is stdout.
int timeline(const Common& common, const std::string& file) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto reported = inspect_nodes(*cluster, actors::Inspect::What::kTasks);
  if (!reported) return failed(common, reported.error());
  const json trace = trace_of(task_rows(*reported), cluster->context->clock->unix_millis() * 1000);
  const std::string text = json_text(trace);
  for (const auto& line : silent_lines(*reported)) print(stderr, "shoal: {}\n", line);
  if (file == "-") {
    print_bytes(stdout, text + "\n");
    return kOk;
  }
  std::ofstream out(file);
  out << text << "\n";
  out.close();
  if (!out) return failed(common, from_errno(errno, "the timeline cannot be written to " + file));
  if (common.json) {
    print_json({{"schema", "shoal.timeline/1"}, {"file", file}, {"events", trace.size()}});
  } else {
    print(stdout, "{}: open it in https://ui.perfetto.dev or chrome://tracing\n", file);
  }
  return kOk;
}

}  // namespace

void add_timeline(CommandLine& line) {
  auto& file = line.own<std::string>("timeline.json");
  auto* verb = line.add_verb("timeline", "Write the executed calls, with place and time, as a Chrome trace for Perfetto");
  verb->add_option("-o,--output", file, "File to write; - for stdout")->capture_default_str();
  line.on_run(verb, [&file](const Common& common) { return timeline(common, file); });
}

}  // namespace shoal::scheduler::cli
