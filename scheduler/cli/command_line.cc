#include "scheduler/cli/command_line.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "runtime/core/version.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/suggestion/suggestion.h"

namespace shoal::scheduler::cli {

namespace {

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); });
}

const CLI::App* verb_of(const CLI::App& app, const std::string& name) {
  const auto verbs = verbs_of(app);
  const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const CLI::App* verb) { return verb->get_name() == name; });
  return found == verbs.end() ? nullptr : *found;
}

// The verb that the first words name; the app itself when they name none.
const CLI::App& named_verb(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const CLI::App* next = verb_of(*at, argv[i]);
    if (next == nullptr) break;
    at = next;
  }
  return *at;
}

// The words that name the verb: `shoal job list`.
std::string command_of(const CLI::App& app, int argc, char** argv) {
  std::string out = "shoal";
  const CLI::App* at = &app;
  for (int i = 1; i < argc && (at = verb_of(*at, argv[i])) != nullptr; ++i) out += " " + at->get_name();
  return out;
}

std::vector<std::string> option_names(const CLI::App& verb) {
  std::vector<std::string> out;
  for (const CLI::Option* option : verb.get_options()) {
    for (const auto& name : option->get_lnames()) out.push_back(name);
  }
  return out;
}

// The verb of a file's section.
Result<const CLI::App*> configured_verb(const CLI::App& app, const Configured& key) {
  const CLI::App* at = &app;
  for (const auto& word : key.verb) {
    const CLI::App* const next = verb_of(*at, word);
    if (next == nullptr) {
      std::vector<std::string> names;
      for (const CLI::App* verb : verbs_of(*at)) names.push_back(verb->get_name());
      const std::string meant = nearest(word, names);
      return fail(invalid_argument(fmt::format("{}: there is no command of the section [{}]", key.file, fmt::join(key.verb, ".")))
                      .with_reason("Usage")
                      .with_hint(meant.empty() ? "`shoal --help` lists the commands" : "did you mean `" + meant + "`?"));
    }
    at = next;
  }
  return at;
}

// The option of `verb` that a configuration file's key sets.
Result<const CLI::Option*> configured_option(const CLI::App& verb, const Configured& key) {
  const CLI::Option* const option = verb.get_option_no_throw("--" + key.name);
  if (option == nullptr) return fail(unknown_key(key, option_names(verb)));
  // Refuses an option that has a variable of its own. A value in a section would take precedence over that variable in the environment.
  const auto& about = option->get_description();
  for (const auto& setting : all_settings()) {
    const std::string named = "$" + std::string(setting.name);
    if (const auto at = about.find(named);
        at != std::string::npos && !std::isalnum(about[at + named.size()]) && about[at + named.size()] != '_') {
      return fail(invalid_argument(fmt::format("{}: the key '{}' in [{}] is the variable {}", key.file, key.name, fmt::join(key.verb, "."),
                                               setting.name))
                      .with_reason("Usage")
                      .with_hint("write it above all sections, by the variable's name in lower case and without SHOAL_"));
    }
  }
  return option;
}

// True if one of the command's words is `option`.
bool is_given(const CLI::Option& option, int argc, char** argv) {
  return std::any_of(argv, argv + argc, [&](const std::string& word) {
    return word.size() > 1 && word.front() == '-' &&
           option.check_name(word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2));
  });
}

// The position of the first word after the verb's name that is neither an option nor an option's value; argc if there is none.
int first_argument(const CLI::App& verb, int argc, char** argv) {
  int at = 1;
  while (at < argc && argv[at] != verb.get_name()) ++at;  // skips the names of groups, such as `job` in `job list`
  for (++at; at < argc; ++at) {
    const std::string word = argv[at];
    if (word == "--" || !word.starts_with('-')) break;
    const CLI::Option* const option = verb.get_option_no_throw(word);  // null for --NAME=VALUE as well
    if (option != nullptr && option->get_items_expected_max() > 0) ++at;
  }
  return std::min(at, argc);
}

// Reports the first word that stands for a command but names none.
std::optional<Error> unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string before = "shoal ";
  for (int i = 1; i < argc && at->get_require_subcommand_min() > 0; ++i) {
    const std::string word = argv[i];
    if (word.starts_with('-')) return std::nullopt;
    const CLI::App* found = verb_of(*at, word);
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const CLI::App* verb : verbs_of(*at)) names.push_back(verb->get_name());
      const std::string meant = nearest(word, names);
      return invalid_argument("there is no command `" + before + word + "`")
          .with_reason("Usage")
          .with_hint((meant.empty() ? "" : "did you mean `" + before + meant + "`? ") + "`" + before + "--help` lists the commands");
    }
    at = found;
    before += word + " ";
  }
  return std::nullopt;
}

// The error for an argument that the command lacks; it names the valid values.
std::optional<Error> missing_argument(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string command = "shoal";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  for (const CLI::Option* option : at->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return invalid_argument("`" + command + "` lacks " + (option->get_positional() ? "its argument `" : "the option `") +
                            option->get_name() + "`")
        .with_reason("Usage")
        .with_hint(option->get_positional() ? option->get_description()
                                            : "pass " + option->get_name() + " VALUE: " + option->get_description());
  }
  return std::nullopt;
}

// Adds the user's program and its arguments, which CLI11 does not know, to the line "Usage: ..".
class ProgramFormatter : public CLI::Formatter {
 public:
  explicit ProgramFormatter(std::string program) : program_(std::move(program)) {}
  std::string make_usage(const CLI::App* app, std::string name) const override {
    auto out = CLI::Formatter::make_usage(app, std::move(name));
    return out.insert(std::min(out.find('\n'), out.size()), program_);
  }

 private:
  const std::string program_;
};

// Reports the first option that the verb lacks.
std::optional<Error> unknown_option(const CLI::App& app, int argc, char** argv) {
  const CLI::App& verb = named_verb(app, argc, argv);
  for (int i = 1; i < argc && argv[i] != std::string("--"); ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || verb.get_option_no_throw(name) != nullptr) continue;
    const auto command = command_of(app, argc, argv);
    const std::string meant = nearest(name.substr(2), option_names(verb));
    return invalid_argument("`" + command + "` has no option " + name)
        .with_reason("Usage")
        .with_hint((meant.empty() ? "" : "did you mean --" + meant + "? ") + "`" + command + " --help` lists the options");
  }
  return std::nullopt;
}

}  // namespace

CommandLine::CommandLine(Common common) : app_("Shoal: actors and fully sharded training on a cluster"), common_(std::move(common)) {
  app_.require_subcommand(1);
  app_.set_version_flag("--version", std::string("shoal ") + kVersion);
}

CLI::App* CommandLine::add_verb(const std::string& name, const std::string& about, CLI::App* group) {
  CLI::App* verb = (group == nullptr ? &app_ : group)->add_subcommand(name, about);
  verb->add_flag("--json", common_.json, "Print one JSON object on stdout");
  verb->add_option(
      "--address", common_.target.address,
      "Address of the cluster: HOST:PORT or unix:@NAME; with several heads HOST:PORT,HOST:PORT (default: $SHOAL_ADDRESS, else the cluster "
      "that runs on this host)");
  verb->add_option_function<std::string>(
      "--token-file",
      [this](const std::string& file) {
        common_.target.token_file = file;
        common_.target.token.clear();
        common_.target.token_named = true;
      },
      "File with a copy of the token of a cluster on other hosts, or with several heads (default: $SHOAL_TOKEN_FILE, or the token itself "
      "in $SHOAL_TOKEN)");
  verb->add_option("--ca-fingerprint", common_.target.fingerprint,
                   "Fingerprint of such a cluster's certificates, as `shoal start --head` printed it (default: $SHOAL_CA_FINGERPRINT)");
  return verb;
}

CLI::App* CommandLine::add_verb_without_cluster(const std::string& name, const std::string& about, CLI::App* group) {
  CLI::App* verb = (group == nullptr ? &app_ : group)->add_subcommand(name, about);
  verb->add_flag("--json", common_.json, "Print one JSON object on stdout");
  return verb;
}

CLI::App* CommandLine::add_group(const std::string& name, const std::string& about) {
  CLI::App* group = app_.add_subcommand(name, about);
  group->require_subcommand(1);
  return group;
}

void CommandLine::takes_command(CLI::App* verb, Command command) {
  with_command_[verb] = command;
  verb->formatter(
      std::make_shared<ProgramFormatter>(command == Command::kProgram ? " -- PROGRAM [ARGS]" : " SCRIPT.py [ARGS] | -- PROGRAM [ARGS]"));
}

void CommandLine::on_run(CLI::App* verb, Action action) {
  verb->callback([this, action = std::move(action)] { code_ = action(common_); });
}

Completions CommandLine::completions(std::vector<std::string> words) const {
  CompletionFacts facts{choices_, {}};
  for (const auto& [verb, command] : with_command_) {
    if (command == Command::kProgramOrScript) facts.with_script.insert(verb);
  }
  return complete(app_, std::move(words), facts);
}

int CommandLine::take_command(const CLI::App& verb, Command what, int argc, char** argv) {
  char** const end = argv + argc;
  char** begin = argv + first_argument(verb, argc, argv);
  const bool takes_script = what == Command::kProgramOrScript;
  if (!takes_script) begin = std::find(begin, end, std::string("--"));
  const bool dashes = begin != end && *begin == std::string("--");
  command_.assign(dashes ? begin + 1 : begin, end);
  command_is_script_ = takes_script && !command_.empty() && (!dashes || command_.front().ends_with(".py"));
  return static_cast<int>(begin - argv);
}

Result<std::vector<std::string>> CommandLine::configured_words(const CLI::App& verb, int argc, char** argv) const {
  std::vector<std::string> out;
  for (const auto& key : configuration_.settings) {
    if (key.verb.empty()) continue;
    SHOAL_TRY(const auto* const its_verb, configured_verb(app_, key));
    SHOAL_TRY(const auto* const option, configured_option(*its_verb, key));
    if (its_verb != &verb || is_given(*option, argc, argv)) continue;
    for (const auto& value : key.values) out.push_back("--" + key.name + "=" + value);
  }
  return out;
}

int CommandLine::run(int argc, char** argv) {
  const CLI::App& verb = named_verb(app_, argc, argv);
  const int options_end = with_command_.contains(&verb) ? first_argument(verb, argc, argv) : argc;
  auto more = configured_words(verb, options_end, argv);
  if (!more) {
    print_error(more.error(), std::find(argv, argv + options_end, std::string("--json")) != argv + options_end);
    return kUsage;
  }
  int at = 1;  // the position behind the verb's name
  for (const CLI::App* app = &app_; app != &verb && at < argc; ++at) app = verb_of(*app, argv[at]);
  std::vector<char*> words(argv, argv + argc);
  std::vector<char*> inserted;
  for (auto& word : *more) inserted.push_back(word.data());
  words.insert(words.begin() + std::min(at, argc), inserted.begin(), inserted.end());
  words.push_back(nullptr);
  return run_words(static_cast<int>(words.size()) - 1, words.data());
}

int CommandLine::run_words(int argc, char** argv) {
  const CLI::App& verb = named_verb(app_, argc, argv);
  if (const auto found = with_command_.find(&verb); found != with_command_.end()) argc = take_command(verb, found->second, argc, argv);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finish_output(refuse(error, argc, argv));
  }
  const int written = finish_output(code_);
  return keep_code_.contains(&verb) ? code_ : written;
}

// Prints the help or the version.
int CommandLine::print_help(const CLI::ParseError& request) const {
  std::ostringstream out, err;
  const int code = app_.exit(request, out, err);
  print(stdout, "{}", Lines{out.view()});
  return code;
}

int CommandLine::refuse(const CLI::ParseError& error, int argc, char** argv) {
  if (error.get_exit_code() == 0) return print_help(error);
  if (const auto unknown = unknown_command(app_, argc, argv)) {
    print_error(*unknown, common_.json);
    return kUsage;
  }
  if (const auto missing = missing_argument(app_); missing && error.get_name() == "RequiredError") {
    print_error(*missing, common_.json);
    return kUsage;
  }
  const auto command = command_of(app_, argc, argv);
  const bool is_group = named_verb(app_, argc, argv).get_require_subcommand_min() > 0;
  const bool lacks_verb = is_group && error.get_name() == "RequiredError";
  const auto unknown =
      error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) ? unknown_option(app_, argc, argv) : std::nullopt;
  print_error(unknown.value_or(invalid_argument(lacks_verb ? "`" + command + "` lacks a command" : std::string(error.what()))
                                   .with_reason("Usage")
                                   .with_hint("`" + command + " --help` lists the " + (is_group ? "commands" : "options"))),
              common_.json);
  const auto found = usage_exits_.find(&named_verb(app_, argc, argv));
  return found == usage_exits_.end() ? static_cast<int>(kUsage) : found->second;
}

CLI::Validator amount() {
  return CLI::Validator([](std::string& text) { return text.starts_with('-') ? "an amount is 0 or more, not " + text : ""; }, "");
}

CLI::Validator positive() {
  return CLI::Validator(
      [](std::string& text) {
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        return std::isfinite(number) && number > 0 && end != text.c_str() && *end == 0
                   ? ""
                   : "a number above 0 is needed, not " + (text.empty() ? "''" : text);
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "an empty text names nothing" : ""); }, "");
}

}  // namespace shoal::scheduler::cli
