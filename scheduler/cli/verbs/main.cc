// The shoal command. Only this file reads the process's arguments and environment.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "runtime/process/standard_streams.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/completion/completion.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/role.h"
#include "scheduler/cli/verbs/verbs.h"

extern char** environ;

namespace shoal::scheduler::cli {
namespace {

Environment environment_now() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return Environment(std::move(entries));
}

Result<Common> common_of(const Environment& environment, const char* argv0) {
  Common common;
  common.self = std::filesystem::read_symlink("/proc/self/exe");
  common.python = find_python(environment, argv0);
  common.target.address = environment.get("SHOAL_ADDRESS");
  common.target.token = environment.get("SHOAL_TOKEN");
  common.target.token_file = environment.get("SHOAL_TOKEN_FILE");
  common.target.fingerprint = environment.get("SHOAL_CA_FINGERPRINT");
  SHOAL_TRY(common.target.root, actors::SessionFolder::root(environment.get("SHOAL_HOME").c_str()));
  unsetenv("SHOAL_TOKEN");  // processes that the command starts read the token from a file
  common.environment = environment_now();
  return common;
}

// Each word on a line, with its description behind a tab.
int print_completions(const CommandLine& line, const std::vector<std::string>& words) {
  const Completions found = line.completions(words);
  for (const auto& word : found.words) print(stdout, "{}\t{}\n", word.text, word.about);
  if (found.files) print(stdout, "{}\n", kFilesLine);
  return kOk;
}

int run(int argc, char** argv) {
  runtime::open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  const Environment environment = environment_now();
  if (argc > 1 && std::string(argv[1]) == "role") return run_role(environment, argc, argv);
  auto common = common_of(environment, argv[0]);
  if (!common) {
    print_error(common.error(), false);
    return kFailed;
  }
  CommandLine line(*std::move(common));
  for (const auto add : kVerbs) add(line);
  if (argc > 1 && std::string(argv[1]) == kCompleteWords) return print_completions(line, {argv + 2, argv + argc});
  return line.run(argc, argv);
}

}  // namespace
}  // namespace shoal::scheduler::cli

int main(int argc, char** argv) { return shoal::scheduler::cli::run(argc, argv); }
