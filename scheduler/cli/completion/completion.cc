#include "scheduler/cli/completion/completion.h"

#include <algorithm>
#include <string_view>

namespace shoal::scheduler::cli {

namespace {

constexpr std::size_t kLongestAbout = 70;

// The first sentence or line of a description.
std::string short_about(const std::string& description) {
  std::string out = description.substr(0, description.find_first_of("\n(;"));
  out = out.substr(0, out.find(". "));
  if (out.size() > kLongestAbout) out = out.substr(0, out.rfind(' ', kLongestAbout)) + " ..";
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

const CLI::App* listed_verb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
    if (verb->get_name() == name) return verb;
  }
  return nullptr;
}

// CLI11 shows the values of IsMember in the type's name, as in TEXT:{one,two}.
std::vector<std::string> checked_values(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto open = type.find('{'), close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  std::vector<std::string> out;
  for (std::size_t from = open + 1; from < close;) {
    const auto end = std::min(type.find(',', from), close);
    out.push_back(type.substr(from, end - from));
    from = end + 1;
  }
  return out;
}

bool names_files(const CLI::Option& option) {
  const std::string name = option.get_name();
  return std::ranges::any_of(std::vector<std::string_view>{"file", "folder", "dir", "path", "script", "out", "checkpoint"},
                             [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

bool is_boolean_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

class Completer {
 public:
  explicit Completer(const CompletionFacts& facts) : facts_(facts) {}

  Completions complete(const CLI::App& app, const std::vector<std::string>& words, bool split_at_equals) {
    verb_ = &app;
    const CLI::Option* open = nullptr;  // an option whose value is the next word
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const std::string& word = words[i];
      if (open != nullptr) {
        open = nullptr;
      } else if (word == "--") {
        return {{}, true};  // behind -- stands the user's program: names of files fit
      } else if (word.size() > 1 && word.front() == '-') {
        const CLI::Option* option = verb_->get_option_no_throw(word);  // null for --NAME=VALUE
        if (option != nullptr && !is_boolean_flag(*option)) open = option;
      } else if (const CLI::App* next = listed_verb(*verb_, word); next != nullptr && num_arguments_ == 0) {
        verb_ = next;
      } else if (++num_arguments_; facts_.with_script.contains(verb_)) {
        return {{}, true};  // behind a script stand its own words: names of files fit
      }
    }
    word_ = words.back();
    if (open != nullptr) {
      add_values(*open, "");
    } else if (const auto equals = word_.find('='); word_.starts_with("--") && equals != std::string::npos) {
      const std::string name = word_.substr(0, equals + 1);
      if (split_at_equals) word_ = word_.substr(equals + 1);
      const CLI::Option* option = verb_->get_option_no_throw(name.substr(0, equals));
      if (option != nullptr) add_values(*option, split_at_equals ? "" : name);
    } else if (word_.starts_with('-')) {
      add_options();
    } else {
      add_arguments();
      if (word_.empty() && out_.words.empty() && !out_.files) add_options();
    }
    return std::move(out_);
  }

 private:
  void add(const std::string& text, const std::string& about) {
    if (text.starts_with(word_)) out_.words.push_back({text, short_about(about)});
  }

  void add_values(const CLI::Option& option, const std::string& before) {
    const auto found = facts_.choices.find(&option);
    const auto values = found == facts_.choices.end() ? checked_values(option) : found->second;
    for (const auto& value : values) add(before + value, "");
    out_.files = values.empty() && (option.get_positional() || names_files(option));
  }

  void add_options() {
    for (const CLI::Option* option : verb_->get_options()) {
      if (option->get_group().empty() || option->get_positional()) continue;
      for (const auto& name : option->get_lnames()) add("--" + name, option->get_description());
    }
  }

  void add_arguments() {
    for (const CLI::App* verb : verb_->get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
      if (!verb->get_group().empty()) add(verb->get_name(), verb->get_description());
    }
    std::size_t position = 0;
    for (const CLI::Option* option : verb_->get_options()) {
      if (!option->get_positional()) continue;
      const bool repeats = option->get_items_expected_max() > 1;
      if (position++ == num_arguments_ || repeats) return add_values(*option, "");
    }
    if (facts_.with_script.contains(verb_)) out_.files = true;
  }

  const CompletionFacts& facts_;
  const CLI::App* verb_ = nullptr;
  std::size_t num_arguments_ = 0;
  std::string word_;
  Completions out_;
};

// The scripts run the installed command, never the word on the line: ./shoal may be any program of a working directory.
constexpr std::string_view kBash = R"sh(# Completion of shoal in bash: eval "$(shoal completion bash)"
_shoal() {
  local word=${COMP_WORDS[COMP_CWORD]} line file
  [[ $word == = ]] && word=
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      compopt -o filenames 2> /dev/null
      while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$word")
    else
      COMPREPLY+=("${line%%$'\t'*}")
    fi
  done < <(command shoal complete-words "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
}
complete -F _shoal shoal
)sh";

constexpr std::string_view kZsh = R"sh(#compdef shoal
# Completion of shoal in zsh: eval "$(shoal completion zsh)", or a file _shoal in a folder of $fpath.
_shoal() {
  local line files
  local -a found
  for line in "${(@f)$(command shoal complete-words "${(@)words[2,CURRENT]}" 2> /dev/null)}"; do
    case $line in
      '') ;;
      :files) files=1 ;;
      *) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  (( ! $#found )) || _describe -t words word found
  [[ -z $files ]] || _files
}
if [[ $funcstack[1] == _shoal ]]; then
  _shoal "$@"
else
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
  compdef _shoal shoal
fi
)sh";

constexpr std::string_view kFish = R"sh(# Completion of shoal in fish: shoal completion fish | source
function __shoal_complete
    set -l words (commandline -opc) "$(commandline -ct)"
    for line in (command shoal complete-words $words[2..] 2> /dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$(commandline -ct)"
        else
            echo $line
        end
    end
end
complete -c shoal -f -a '(__shoal_complete)'
)sh";

}  // namespace

Completions complete(const CLI::App& app, std::vector<std::string> words, const CompletionFacts& facts) {
  if (words.empty()) words.emplace_back();
  bool split = false;
  std::vector<std::string> whole;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "=" && !whole.empty() && whole.back().starts_with("--")) {
      whole.back() += "=";
      split = i + 2 >= words.size();
      if (i + 1 < words.size()) whole.back() += words[++i];
    } else {
      whole.push_back(words[i]);
    }
  }
  return Completer(facts).complete(app, whole, split);
}

std::string script_for(const std::string& shell) { return std::string(shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish); }

}  // namespace shoal::scheduler::cli
