#include "scheduler/cli/command_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>

#include <gtest/gtest.h>

#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {
namespace {

// A command line with the verb `count`, which takes a command, `start`, which also takes a script, and the verbs `jobs list` and
// `jobs run`.
struct Shoal {
  Shoal() {
    auto* count = line.add_verb("count", "");
    line.takes_command(count);
    line.set_usage_exit(count, 99);
    count->add_option("--more", line.own<int>())->check(CLI::Range(0, 9));
    line.on_run(count, [this](const Common&) { return static_cast<int>(line.command().size()); });
    auto* start = line.add_verb("start", "");
    line.takes_command(start, CommandLine::Command::kProgramOrScript);
    start->add_option("--name", line.own<std::string>());
    start->add_option("--resource", line.own<std::vector<std::string>>());
    start->add_flag("--wait", line.own<bool>());
    line.on_run(start, [this](const Common&) { return line.command_is_script() ? 5 : 6; });
    auto* group = line.add_group("jobs", "");
    line.on_run(line.add_verb("list", "", group), [this](const Common& common) {
      target = common.target;
      return 7;
    });
    auto* run = line.add_verb("run", "", group);
    run->add_option("id", line.own<std::string>())->required()->check(not_empty());
    run->add_option("--node", line.own<std::string>())->check(not_empty());
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

TEST(CommandLine, AnEmptyNameIsNoName) {
  EXPECT_EQ(Shoal()({"jobs", "run", ""}), kUsage);
  EXPECT_EQ(Shoal()({"jobs", "run", "3", "--node", ""}), kUsage);
  EXPECT_EQ(Shoal()({"jobs", "run", "3", "--node="}), kUsage);
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

TEST(CommandLine, AScriptIsTheFirstWordBehindTheOptionsAndHasAllWordsBehindIt) {
  const std::vector<std::string> script = {"s.py", "", "a b", "--", "--wait", "-", "--name", "--"};
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {}, {"--wait"}, {"--name", "x"}, {"--name=x"}, {"--resource", "a=1", "--resource", "b=2"}, {"--json", "--name", "start"}}) {
    Shoal shoal;
    std::vector<std::string> words = {"start"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), script.begin(), script.end());
    EXPECT_EQ(shoal(words), 5) << options.size();
    EXPECT_EQ(shoal.line.command(), script) << options.size();
  }
  Shoal shoal;
  EXPECT_EQ(shoal({"start", "--wait", "--", "ls", "--", "s.py"}), 6);
  EXPECT_EQ(shoal.line.command(), (std::vector<std::string>{"ls", "--", "s.py"}));
  Shoal third;
  EXPECT_EQ(third({"start", "--wait", "--", "s.py", "--", "--wait"}), 5) << "a script behind -- as well";
  EXPECT_EQ(third.line.command(), (std::vector<std::string>{"s.py", "--", "--wait"}));
  EXPECT_EQ(Shoal()({"start", "--"}), 6);
  EXPECT_EQ(Shoal()({"start", "--wiat", "s.py"}), kUsage) << "an unknown option in front of the script is not the script's";
}

TEST(CommandLine, WrongUsageHasAnExitCodeOfItsOwnWhereAVerbSetsOne) {
  EXPECT_EQ(Shoal()({"count", "--more", "12"}), 99);
  EXPECT_EQ(Shoal()({"jobs", "list", "--more", "12"}), kUsage);
  EXPECT_EQ(Shoal()({"jobs", "run"}), kUsage);
  EXPECT_EQ(Shoal()({"jobs"}), kUsage);
  EXPECT_EQ(Shoal()({"job", "list"}), kUsage);
}

TEST(CommandLine, WrongUsageIsAnErrorLikeOthers) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Shoal()({"jobs", "list", "--more", "12"}), kUsage);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "error[InvalidArgument/Usage]: `shoal jobs list` has no option --more\n"
            "  hint: `shoal jobs list --help` lists the options\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Shoal()({}), kUsage);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "error[InvalidArgument/Usage]: `shoal` lacks a command\n  hint: `shoal --help` lists the commands\n");
  testing::internal::CaptureStdout();
  EXPECT_EQ(Shoal()({"jobs", "list", "--json", "--more", "12"}), kUsage);
  EXPECT_EQ(nlohmann::json::parse(testing::internal::GetCapturedStdout())["schema"], "shoal.error/1");
}

TEST(CommandLine, ANumberAbove0) {
  for (std::string right : {"1", "0.5", "1e3"}) EXPECT_EQ(positive()(right), "") << right;
  for (std::string wrong : {"", "0", "-1", "x", "1x", "inf", "nan"}) EXPECT_NE(positive()(wrong), "") << wrong;
}

// Runs the words with stdout at this descriptor.
int code_with_stdout(int descriptor, const std::vector<std::string>& words) {
  Shoal shoal;
  auto* prints = shoal.line.add_verb("prints", "");
  shoal.line.on_run(prints, [](const Common&) {
    print(stdout, "text\n");
    return static_cast<int>(kOk);
  });
  auto* runs = shoal.line.add_verb("runs", "");
  shoal.line.keeps_programs_code(runs);
  shoal.line.on_run(runs, [](const Common&) {
    print(stdout, "text\n");
    return static_cast<int>(kOk);
  });
  std::fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  dup2(descriptor, STDOUT_FILENO);
  const int code = shoal(words);
  std::fflush(stdout);
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(descriptor);
  std::clearerr(stdout);
  return code;
}

TEST(CommandLine, OutputThatIsLostIsAFailureUnlessTheCodeIsAProgramsOrTheReaderHasGone) {
  EXPECT_EQ(code_with_stdout(open("/dev/null", O_WRONLY), {"prints"}), kOk);
  EXPECT_EQ(code_with_stdout(open("/dev/full", O_WRONLY), {"prints"}), kFailed);
  EXPECT_EQ(code_with_stdout(open("/dev/full", O_WRONLY), {"--help"}), kFailed);
  EXPECT_EQ(code_with_stdout(open("/dev/full", O_WRONLY), {"jobs", "run"}), kUsage);
  EXPECT_EQ(code_with_stdout(open("/dev/full", O_WRONLY), {"runs"}), kOk);
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(code_with_stdout(ends[1], {"prints"}), kOk);
}

// ---- output.h

const std::string kHostile = "a\x1b]0;t\a\r\nb\u202e";
const std::string kEscaped = "a\\x1b]0;t\\x07\\r\\nb\\u202e";

std::string printed(const std::function<void()>& print_it) {
  testing::internal::CaptureStdout();
  print_it();
  return testing::internal::GetCapturedStdout();
}

TEST(Output, PrintEscapesItsTextArguments) {
  EXPECT_EQ(printed([] { print(stdout, "Job {} has {} of {:<4}|{}\n", kHostile, 2, "x", kHostile.c_str()); }),
            "Job " + kEscaped + " has 2 of x   |" + kEscaped + "\n");
  EXPECT_EQ(printed([] { print(stdout, "{}\n", Lines{"one\n two\x1b[2J"}); }), "one\n two\\x1b[2J\n");
  EXPECT_EQ(printed([] { print(stdout, "{}\n", std::string("zero\0byte", 9)); }), "zero\\x00byte\n");
}

TEST(Output, ATablesCellsAreEscapedAndAligned) {
  EXPECT_EQ(printed([] { print_table({"NAME", "N"}, {{kHostile, "1"}, {"\u00e9", "2"}}); }),
            "NAME" + std::string(kEscaped.size() - 4, ' ') + "  N\n" + kEscaped + "  1\n\u00e9" + std::string(kEscaped.size() - 2, ' ') +
                "  2\n");
}

TEST(Output, JsonIsValidAndHasNoControlCharacters) {
  const nlohmann::json value = {{kHostile, "\x7f\u0085\u00e9"}};
  const auto text = printed([&] { print_json(value); });
  EXPECT_EQ(text, "{\"a\\u001b]0;t\\u0007\\r\\nb\\u202e\":\"\\u007f\\u0085\u00e9\"}\n");
  EXPECT_EQ(nlohmann::json::parse(text), value);
}

TEST(Output, AProgramsOutputIsLeftAsItIsInAFile) {
  EXPECT_EQ(printed([] { print_output(stdout, "(A" + kHostile + ") ", std::string("\x1b[31mred\0\n\x1b]0;t\a", 16)); }),
            "(A" + kEscaped + ") " + std::string("\x1b[31mred\0\n", 10) + "(A" + kEscaped + ") \x1b]0;t\a\n");
}

}  // namespace
}  // namespace shoal::scheduler::cli
