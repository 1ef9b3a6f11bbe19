#include "scheduler/cli/environment.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

namespace fs = std::filesystem;

TEST(Environment, AVariableIsFoundByItsWholeName) {
  const Environment environment({"HOMES=1", "HOME=/root", "HOME=/other", "EMPTY="});
  EXPECT_EQ(environment.get("HOME"), "/root");
  EXPECT_EQ(environment.get("EMPTY"), "");
  EXPECT_EQ(environment.get("HOM"), "");
}

TEST(Environment, AJobGetsTheSubmittersVariablesWithoutSecretsAndNamesOfClusters) {
  const Environment environment({"A=1", "SHOAL_TOKEN=secret", "SHOAL_ADDRESS=here:1", "PWD=/", "SHOAL_SPILL=x=y", "no variable"});
  EXPECT_EQ(job_variables(environment), (std::vector<std::pair<std::string, std::string>>{{"A", "1"}, {"SHOAL_SPILL", "x=y"}}));
}

TEST(Environment, AJobGetsTheSubmittersInterfaceButNotThatOfAWorker) {
  EXPECT_EQ(job_variables(Environment({"SHOAL_INTERFACE=ib0"})).size(), 1u);
  EXPECT_TRUE(job_variables(Environment({"SHOAL_INTERFACE=10.0.0.1", "SHOAL_WORKER_ID=1"})).empty());
}

TEST(Environment, ASettingIsOnOrOff) {
  for (const char* right : {"", "1", "true", "On", " YES ", "0", "False", "off", "no", " "}) {
    EXPECT_TRUE(check_switch("SHOAL_FSDP", right)) << right;
  }
  for (const char* name : {"SHOAL_FSDP", "SHOAL_SPMD", "SHOAL_SPMD_VERIFY", "SHOAL_LEASE_GUARD"}) {
    const auto refused = check_switches(Environment({std::string(name) + "=maybe"}));
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().message(), std::string(name) + " is 1, true, on or yes, or 0, false, off, no or empty, not 'maybe'");
  }
  EXPECT_TRUE(store_access(Environment({"SHOAL_STORE_IN_CLEAR_TEXT=true"})).in_clear_text);
  EXPECT_FALSE(store_access(Environment({"SHOAL_STORE_IN_CLEAR_TEXT=off"})).in_clear_text);
}

TEST(Environment, MemoryLimitsOutsideOfTheirRangeAreRefused) {
  const auto rule = memory_rule(Environment({"SHOAL_MEMORY_USAGE_THRESHOLD=0.5", "SHOAL_MEMORY_LIMIT=1000"}));
  ASSERT_TRUE(rule) << rule.error().to_string();
  EXPECT_EQ(rule->threshold, 0.5);
  EXPECT_EQ(rule->limit, 1000u);
  for (const char* wrong : {"SHOAL_MEMORY_USAGE_THRESHOLD=1.5", "SHOAL_MEMORY_USAGE_THRESHOLD=nan", "SHOAL_MEMORY_USAGE_THRESHOLD=half",
                            "SHOAL_MEMORY_LIMIT=0", "SHOAL_MEMORY_LIMIT=-1", "SHOAL_MEMORY_LIMIT=1G"}) {
    EXPECT_FALSE(memory_rule(Environment({wrong}))) << wrong;
  }
}

TEST(HeadAbsence, TheLimitIsANumberOfSeconds) {
  EXPECT_EQ(head_absence_limit(Environment()).value(), std::chrono::seconds(600));
  EXPECT_EQ(head_absence_limit(Environment({"SHOAL_HEAD_ABSENCE_LIMIT=0"})).value(), std::chrono::seconds(0));
  EXPECT_EQ(head_absence_limit(Environment({"SHOAL_HEAD_ABSENCE_LIMIT=90"})).value(), std::chrono::seconds(90));
  for (const char* wrong : {"SHOAL_HEAD_ABSENCE_LIMIT=-1", "SHOAL_HEAD_ABSENCE_LIMIT=10 min"}) {
    EXPECT_FALSE(head_absence_limit(Environment({wrong}))) << wrong;
  }
}

TEST(FindPython, TheInterpreterIsTheOneBesideTheCommand) {
  const fs::path root = fs::path(testing::TempDir()) / "find_python";
  for (const char* folder : {"first", "second", "venv/bin"}) {
    fs::create_directories(root / folder);
    for (const char* name : {"shoal", "python3"}) {
      std::ofstream(root / folder / name) << "#!/bin/sh\n";
      fs::permissions(root / folder / name, fs::perms::owner_all);
    }
  }
  fs::remove(root / "first" / "shoal");
  const std::string path = "PATH=" + (root / "first").string() + ":" + (root / "second").string();
  const std::string venv = "VIRTUAL_ENV=" + (root / "venv").string();
  EXPECT_EQ(find_python(Environment({path, venv}), "shoal"), root / "second" / "python3");
  EXPECT_EQ(find_python(Environment({path, venv}), root / "first" / "shoal"), root / "first" / "python3");
  EXPECT_EQ(find_python(Environment({"PATH=", venv}), "shoal"), root / "venv" / "bin" / "python3");
  EXPECT_EQ(find_python(Environment({path, "SHOAL_PYTHON=mine"}), "shoal"), "mine");
  EXPECT_EQ(find_python(Environment({"PATH=" + root.string()}), "shoal"), "python3");
}

}  // namespace
}  // namespace shoal::scheduler::cli
