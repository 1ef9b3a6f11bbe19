// The command line of `shoal`: verbs add themselves with their options and an action, then it is parsed and one action runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "scheduler/cli/cluster.h"
#include "scheduler/cli/completion/completion.h"
#include "scheduler/cli/configuration/configuration.h"

namespace shoal::scheduler::cli {

class CommandLine {
 public:
  // Returns the command's exit code. It may throw CLI::ValidationError for options that exclude each other.
  using Action = std::function<int(const Common&)>;

  // `common` has the defaults of the options that verbs share.
  explicit CommandLine(Common common);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds a verb with the options that name a cluster, and --json. `group`: the verb that it follows, as in `shoal job list`.
  CLI::App* add_verb(const std::string& name, const std::string& about, CLI::App* group = nullptr);
  // Adds a verb that needs no cluster: it has --json, but not the options that name a cluster.
  CLI::App* add_verb_without_cluster(const std::string& name, const std::string& about, CLI::App* group = nullptr);
  // Adds a group of verbs, whose name stands in front of theirs: `shoal job list`.
  CLI::App* add_group(const std::string& name, const std::string& about);

  void on_run(CLI::App* verb, Action action);
  // The words that the verb's action finds in command(). kProgram: those after --. kProgramOrScript: also a script, which is the first word
  // that is neither an option nor an option's value, and all words after it, -- included. A word behind -- is a script if it ends with .py.
  enum class Command { kProgram, kProgramOrScript };
  void takes_command(CLI::App* verb, Command command = Command::kProgram);
  // The valid values of an option or argument, for completion. Values that a check lists need no such call.
  void set_choices(const CLI::Option* option, std::vector<std::string> values) { choices_[option] = std::move(values); }
  const std::vector<std::string>& command() const { return command_; }
  bool command_is_script() const { return command_is_script_; }
  // The verb's exit code is that of a program of the user. A full disk under this command's output does not change that code.
  void keeps_programs_code(CLI::App* verb) { keep_code_.insert(verb); }
  // The exit code for wrong options of this verb, instead of kUsage.
  void set_usage_exit(CLI::App* verb, int code) { usage_exits_[verb] = code; }

  // Options into which the command line is parsed. They live as long as this object.
  template <class Options>
  Options& own(Options options = {}) {
    auto owned = std::make_shared<Options>(std::move(options));
    owned_.push_back(owned);
    return *owned;
  }
  const Environment& environment() const { return common_.environment; }

  // Completions of the last one of `words`, which are the words behind `shoal`.
  Completions completions(std::vector<std::string> words) const;

  // Options from configuration files, which count unless the command line has them. run() refuses options that no verb has.
  void set_configuration(Configuration configuration) { configuration_ = std::move(configuration); }
  const Configuration& configuration() const { return configuration_; }

  // Parses, runs the action of the verb and returns its exit code. Wrong usage is printed.
  int run(int argc, char** argv);

 private:
  int run_words(int argc, char** argv);
  // Words from configuration files, for options of `verb` that argv lacks.
  Result<std::vector<std::string>> configured_words(const CLI::App& verb, int argc, char** argv) const;
  // Cuts the user's program and its arguments (Command) out of argv into command_. Returns the argc that is left.
  int take_command(const CLI::App& verb, Command what, int argc, char** argv);
  int refuse(const CLI::ParseError& error, int argc, char** argv);
  int print_help(const CLI::ParseError& request) const;

  CLI::App app_;
  Common common_;
  Configuration configuration_;
  std::vector<std::shared_ptr<void>> owned_;
  std::map<const CLI::App*, Command> with_command_;
  std::map<const CLI::Option*, std::vector<std::string>> choices_;
  std::map<const CLI::App*, int> usage_exits_;
  std::set<const CLI::App*> keep_code_;
  std::vector<std::string> command_;
  bool command_is_script_ = false;
  int code_ = 0;
};

// Checks an option that is an amount.
CLI::Validator amount();
// Checks an option that is a number above 0.
CLI::Validator positive();
// Refuses an empty argument where a name or an id is expected: it is the value of a shell's variable that is not set, and no default.
CLI::Validator not_empty();

}  // namespace shoal::scheduler::cli
