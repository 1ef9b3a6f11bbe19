// migrate, check: run in Python, which parses the user's scripts and imports none of them.
#include <string>
#include <utility>
#include <vector>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/verbs/python_module.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

struct ScriptOptions {
  std::string script;
  std::string to = "shoal";
  bool write = false;
  std::vector<std::string> ignored;  // rules
};

// Replaces this process by Python's command; returns only on failure.
int run_scripts(const Common& common, std::vector<std::string> words, const std::string& script) {
  if (common.json) words.push_back("--json");
  words.insert(words.end(), {"--", script});
  return become_python_module(common, "shoal._scripts", words);
}

}  // namespace

void add_migrate(CommandLine& line) {
  auto& o = line.own<ScriptOptions>();
  auto* verb = line.add_verb_without_cluster("migrate", "Print a script of FSDP1 or FSDP2 as one of Shoal, as a diff");
  verb->add_option("script", o.script, "A Python script, which is read and not run")->required();
  verb->add_option("--to", o.to, "shoal (fully_shard of Shoal), fsdp2 (that of torch) or fsdp1 (FSDP1's class on Shoal's engine)")
      ->capture_default_str()
      ->check(CLI::IsMember({"shoal", "fsdp2", "fsdp1"}));
  verb->add_flag("--write", o.write, "Change the file");
  line.on_run(verb, [&o](const Common& common) {
    std::vector<std::string> words = {"migrate", "--to", o.to};
    if (o.write) words.push_back("--write");
    return run_scripts(common, std::move(words), o.script);
  });
}

void add_check(CommandLine& line) {
  auto& o = line.own<ScriptOptions>();
  auto* verb = line.add_verb_without_cluster("check", "Compare a training script with the six best practices of the FSDP2 guide");
  verb->add_option("script", o.script, "A Python script, which is read and not run")->required();
  verb->add_option("--ignore", o.ignored, "A rule that is not checked; may be repeated")
      ->check(CLI::IsMember({"submodules-first", "optimizer-after", "checkpoint", "prefetch", "mixed-precision", "memory"}));
  line.on_run(verb, [&o](const Common& common) {
    std::vector<std::string> words = {"check"};
    for (const auto& rule : o.ignored) words.insert(words.end(), {"--ignore", rule});
    return run_scripts(common, std::move(words), o.script);
  });
}

}  // namespace shoal::scheduler::cli
