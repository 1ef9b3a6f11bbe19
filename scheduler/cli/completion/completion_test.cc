#include "scheduler/cli/completion/completion.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using Words = std::vector<std::string>;

// `list WHAT --format F`, `run SCRIPT`, `job stop ID`, `job status ID` and the verb `hidden`.
struct Shoal {
  Shoal() {
    auto* list = app.add_subcommand("list", "Show rows");
    list->add_flag("--json", flag, "Print JSON");
    list->add_option("--format", text, "Format of the output")->check(CLI::IsMember({"json", "table", "yaml"}));
    list->add_option("--token-file", text, "A file. It has the token");
    list->add_option("--limit", text, "Rows");
    facts.choices[list->add_option("what", text)] = {"actors", "nodes"};
    auto* run = app.add_subcommand("run", "Run a script");
    run->add_option("--nproc", text, "Ranks");
    facts.with_script.insert(run);
    auto* job = app.add_subcommand("job", "Jobs");
    job->add_subcommand("stop", "Stop a job")->add_option("id", text);
    job->add_subcommand("status", "Show a job");
    app.add_subcommand("hidden", "")->group("");
  }

  Words operator()(Words words) const {
    const auto found = complete(app, std::move(words), facts);
    Words out;
    for (const auto& word : found.words) out.push_back(word.text);
    if (found.files) out.emplace_back(kFilesLine);
    return out;
  }

  CLI::App app;
  CompletionFacts facts;
  std::string text;
  bool flag = false;
};

TEST(Completion, VerbsAreCompletedAndHiddenOnesAreNot) {
  const Shoal shoal;
  EXPECT_EQ(shoal({""}), (Words{"list", "run", "job"}));
  EXPECT_EQ(shoal({}), (Words{"list", "run", "job"}));
  EXPECT_EQ(shoal({"l"}), Words{"list"});
  EXPECT_EQ(shoal({"job", "st"}), (Words{"stop", "status"}));
  EXPECT_EQ(shoal({"nothing", "st"}), Words{});
}

TEST(Completion, OptionsAreThoseOfTheVerb) {
  const Shoal shoal;
  EXPECT_EQ(shoal({"list", "--"}), (Words{"--help", "--json", "--format", "--token-file", "--limit"}));
  EXPECT_EQ(shoal({"list", "actors", "--f"}), Words{"--format"});
  EXPECT_EQ(shoal({"job", "stop", "--"}), Words{"--help"});
  const auto found = complete(shoal.app, {"list", "--token"}, shoal.facts);
  ASSERT_EQ(found.words.size(), 1u);
  EXPECT_EQ(found.words[0].about, "A file");
}

TEST(Completion, ValuesThatACheckOrAChoiceListsAreCompleted) {
  const Shoal shoal;
  EXPECT_EQ(shoal({"list", "--format", ""}), (Words{"json", "table", "yaml"}));
  EXPECT_EQ(shoal({"list", "--json", "--format", "t"}), Words{"table"});
  EXPECT_EQ(shoal({"list", "--format=t"}), Words{"--format=table"}) << "zsh and fish replace the whole word";
  EXPECT_EQ(shoal({"list", "--format", "=", "t"}), Words{"table"}) << "bash replaces what follows the =";
  EXPECT_EQ(shoal({"list", "--format", "="}), (Words{"json", "table", "yaml"}));
  EXPECT_EQ(shoal({"list", "--format", "=", "json", "a"}), Words{"actors"});
  EXPECT_EQ(shoal({"list", "--limit", ""}), Words{}) << "a number";
  EXPECT_EQ(shoal({"list", ""}), (Words{"actors", "nodes"}));
}

TEST(Completion, ScriptsFilesAndTheUsersProgramAreFiles) {
  const Shoal shoal;
  EXPECT_EQ(shoal({"run", "tr"}), Words{kFilesLine});
  EXPECT_EQ(shoal({"run", "--nproc", "4", "train.py", "--"}), Words{kFilesLine}) << "the script's own options are not known";
  EXPECT_EQ(shoal({"run", "--nproc", "4", "--"}), (Words{"--help", "--nproc"}));
  EXPECT_EQ(shoal({"run", "--", "l"}), Words{kFilesLine});
  EXPECT_EQ(shoal({"list", "--token-file", ""}), Words{kFilesLine});
}

TEST(Completion, ScriptsRunTheInstalledCommandAndNeverTheTypedOne) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = script_for(shell);
    EXPECT_NE(script.find("(command shoal complete-words "), std::string::npos) << shell;
    EXPECT_EQ(script.find("complete-words"), script.rfind("complete-words")) << shell;
  }
}

}  // namespace
}  // namespace shoal::scheduler::cli
