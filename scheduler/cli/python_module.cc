#include "scheduler/cli/python_module.h"

#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

namespace shoal::scheduler::cli {

std::vector<std::string> python_module(const Common& common, std::string_view module) {
  // Python 3.10 has no option -P. The empty entry of sys.path is the working directory.
  return {common.python, "-c",
          fmt::format("import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
                      "runpy.run_module('{}', run_name='__main__', alter_sys=True)",
                      module)};
}

int become_python_module(const Common& common, std::string_view module, const std::vector<std::string>& words) {
  auto line = python_module(common, module);
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (auto& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return failed(common, from_errno(errno, common.python));
}

}  // namespace shoal::scheduler::cli
