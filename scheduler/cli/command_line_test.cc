#include "scheduler/cli/command_line.h"

#include <gtest/gtest.h>

#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {
namespace {

// A command line with the verb `count`, which takes a command, and the verbs `jobs list` and `jobs run`.
struct Shoal {
  Shoal() {
    auto* count = line.add_verb("count", "");
    line.takes_command(count);
    line.set_usage_exit(count, 99);
    count->add_option("--more", line.own<int>())->check(CLI::Range(0, 9));
    line.on_run(count, [this](const Common&) { return static_cast<int>(line.command().size()); });
    auto* group = line.add_group("jobs", "");
    line.on_run(line.add_verb("list", "", group), [this](const Common& common) {
      target = common.target;
      return 7;
    });
    auto* run = line.add_verb("run", "", group);
    run->add_option("id", line.own<std::string>())->required();
    line.on_run(run, [](const Common&) { return 8; });
  }

  int operator()(std::vector<std::string> words) {
    words.insert(words.begin(), "shoal");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    return line.run(static_cast<int>(argv.size()), argv.data());
  }

  static Common from_environment() {
    Common common;
    common.target.address = "there:1";
    common.target.token = "token";
    return common;
  }

  CommandLine line{from_environment()};
  Target target;
};

TEST(CommandLine, TheExitCodeIsThatOfTheNamedVerb) {
  EXPECT_EQ(Shoal()({"jobs", "list"}), 7);
  EXPECT_EQ(Shoal()({"jobs", "run", "3"}), 8);
}

TEST(CommandLine, OptionsGoBeforeTheEnvironment) {
  Shoal shoal;
  EXPECT_EQ(shoal({"jobs", "list"}), 7);
  EXPECT_EQ(shoal.target.address, "there:1");
  EXPECT_EQ(shoal.target.token, "token");
  Shoal other;
  EXPECT_EQ(other({"jobs", "list", "--address", "here:2", "--token-file", "file"}), 7);
  EXPECT_EQ(other.target.address, "here:2");
  EXPECT_EQ(other.target.token, "") << "a named file replaces the token of the environment";
  EXPECT_EQ(other.target.token_file, "file");
}

TEST(CommandLine, WordsAfterTwoDashesAreTheCommandOfAVerbThatTakesOne) {
  EXPECT_EQ(Shoal()({"count"}), 0);
  EXPECT_EQ(Shoal()({"count", "--", "ls", "--json", "--", "--more=12"}), 4);
  EXPECT_EQ(Shoal()({"jobs", "run", "--", "--json"}), 8) << "elsewhere they are arguments";
}

TEST(CommandLine, WrongUsageHasAnExitCodeOfItsOwnWhereAVerbSetsOne) {
  EXPECT_EQ(Shoal()({"count", "--more", "12"}), 99);
  EXPECT_EQ(Shoal()({"jobs", "list", "--more", "12"}), kUsage);
  EXPECT_EQ(Shoal()({"jobs", "run"}), kUsage);
  EXPECT_EQ(Shoal()({"jobs"}), kUsage);
  EXPECT_EQ(Shoal()({"job", "list"}), kUsage);
}

}  // namespace
}  // namespace shoal::scheduler::cli
