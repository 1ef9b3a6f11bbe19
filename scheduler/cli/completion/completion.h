// The words that may follow on a command line, from the verbs and options themselves. The shells' scripts (`script_for`) pass words here at
// each completion, so they know the options of the `shoal` that they call.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace shoal::scheduler::cli {

struct Completions {
  struct Word {
    std::string text;
    std::string about;
  };
  std::vector<Word> words;
  bool files = false;  // names of files and folders are valid, too
};

// Facts that CLI11 does not know.
struct CompletionFacts {
  std::map<const CLI::Option*, std::vector<std::string>> choices;  // valid values of options and arguments, where no check lists them
  std::set<const CLI::App*> with_script;  // verbs whose first argument is a script, behind which its own words follow
};

// `words`: those behind `shoal`. The last one, perhaps empty, is completed. bash passes --NAME=VALUE as three words.
Completions complete(const CLI::App& app, std::vector<std::string> words, const CompletionFacts& facts);

// The first word of a command that prints Completions: `shoal complete-words WORD..`. The command is not listed.
inline constexpr const char* kCompleteWords = "complete-words";
// A line of that command instead of a word, if files are valid.
inline constexpr const char* kFilesLine = ":files";

// The script for bash, zsh or fish.
std::string script_for(const std::string& shell);

}  // namespace shoal::scheduler::cli
