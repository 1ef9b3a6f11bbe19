// The shoal command. Only this file reads the process's arguments and environment.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "runtime/process/standard_streams.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/completion/completion.h"
#include "scheduler/cli/configuration/configuration.h"
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

// Sets the variables of files that this process's environment lacks. Commands that this one starts find them there, and read no file.
Result<Configuration> configuration_now(bool without_files) {
  const Environment environment = environment_now();
  std::error_code ignored;
  SHOAL_TRY(auto out, without_files ? Result<Configuration>(Configuration())
                                    : find_configuration([&](auto name) { return environment.get(name); },
                                                         std::filesystem::current_path(ignored).string()));
  for (const auto& warning : out.warnings) print(stderr, "shoal: {}\n", warning);
  for (const auto& key : out.settings) {
    if (key.verb.empty() && environment.get(key.name).empty()) setenv(key.name.c_str(), key.values.front().c_str(), 1);
  }
  setenv("SHOAL_CONFIG", "none", 1);
  return out;
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
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "role") {
    unsetenv("SHOAL_CONFIG");  // workers inherit a node's environment, and their own commands read files again
    return run_role(environment_now(), argc, argv);
  }
  auto configuration = configuration_now(first == kCompleteWords);
  if (!configuration) {
    print_error(configuration.error(), std::find(argv, argv + argc, std::string("--json")) != argv + argc);
    return kUsage;
  }
  auto common = common_of(environment_now(), argv[0]);
  if (!common) {
    print_error(common.error(), false);
    return kFailed;
  }
  CommandLine line(*std::move(common));
  add_verbs(line);
  line.set_configuration(*std::move(configuration));
  if (first == kCompleteWords) return print_completions(line, {argv + 2, argv + argc});
  return line.run(argc, argv);
}

}  // namespace
}  // namespace shoal::scheduler::cli

int main(int argc, char** argv) { return shoal::scheduler::cli::run(argc, argv); }
