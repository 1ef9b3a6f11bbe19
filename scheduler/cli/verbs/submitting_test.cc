#include "scheduler/cli/verbs/submitting.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

// A command with a program in the interpreter's place.
Common program(const std::string& script) {
  const std::string path = std::filesystem::path(testing::TempDir()) / "python";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  chmod(path.c_str(), 0700);
  Common common;
  common.python = path;
  return common;
}

constexpr const char* kMuchOnStderr = "head -c 1000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; ";

TEST(AskPython, ReturnsStdoutHoweverMuchComesOnStderrFirst) {
  const auto said = run_python(program(kMuchOnStderr + std::string("case $2 in *shoal._submitting*) echo \"$1 $3\";; esac")), {"yaml"});
  ASSERT_TRUE(said) << said.error().to_string();
  EXPECT_EQ(*said, "-c yaml");
}

TEST(AskPython, AFailureIsTheLastLineOfStderr) {
  const auto said = run_python(program(kMuchOnStderr + std::string("echo some; echo 'no such file' >&2; exit 1")), {});
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(said.error().message(), "no such file");
}

}  // namespace
}  // namespace shoal::scheduler::cli
