// microbenchmark: runs in Python, as most figures measure calls between Python processes.
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "scheduler/cli/commands.h"

namespace shoal::scheduler::cli {

int microbenchmark(const Common& common, const MicrobenchmarkOptions& options) {
  std::vector<std::string> words = {common.python,  "-m",        "shoal._microbenchmark",           "--filter",
                                    options.filter, "--seconds", fmt::format("{}", options.seconds)};
  if (common.json) words.push_back("--json");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return failed(common, from_errno(errno, common.python));
}

}  // namespace shoal::scheduler::cli
