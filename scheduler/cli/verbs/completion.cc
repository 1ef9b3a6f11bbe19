// completion: the script by which a shell completes the words of `shoal`.
#include <cstdio>
#include <string>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/completion/completion.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

void add_completion(CommandLine& line) {
  auto& shell = line.own<std::string>();
  auto* verb = line.add_verb_without_cluster("completion", "Print the script by which a shell completes commands and options");
  verb->add_option("shell", shell, "bash, zsh or fish: eval \"$(shoal completion bash)\" loads it")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  line.on_run(verb, [&shell](const Common&) {
    print_bytes(stdout, script_for(shell));
    return kOk;
  });
}

}  // namespace shoal::scheduler::cli
