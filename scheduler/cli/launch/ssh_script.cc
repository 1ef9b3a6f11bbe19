#include "scheduler/cli/launch/ssh_script.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler::cli {

namespace {

// @NAME@, @HOSTS@ and so on are replaced. Shells of the hosts read folder, shoal, script, words and variables again, so that these are
// quoted twice.
constexpr const char* kScript = R"BASH(#!/bin/bash
# Starts the run on each host, and follows the output of the first one. Ctrl-C leaves the run alone.
# SIGTERM to a host's process (NAME-NUMBER.pid) asks it to save and leave; on the first host it ends the run.
set -euo pipefail
name=@NAME@
hosts=(@HOSTS@)
folder=@FOLDER@
shoal=@SHOAL@
script=@SCRIPT@
words=@WORDS@
variables=@VARIABLES@
@CALLERS@# The hosts meet by a secret. A host gets its commands through stdin: every user of a host can read the words of a command.
secret=$(openssl rand -hex 32)

on() { ssh -o BatchMode=yes -o ConnectTimeout=30 "${hosts[$1]}" 'exec sh -s'; }

# The first commands for the host of number $1.
begin() {
  printf '%s\n' "number=$1" "name=$name" "shoal=$shoal" "script=$script" "$variables" "set -- $words" \
    "cd -- $folder 2>/dev/null || { echo 'cannot enter the folder' $folder; exit 1; }"
  cat <<'END'
is_of_run() {  # the process lives, and is one of this run in this folder
  tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF -e " --run-folder shoal-run/$name " &&
    [ "$(readlink "/proc/$1/cwd")" = "$(pwd -P)" ]
} 2>/dev/null
ends_within() {  # $2 tenths of a second; a zombie counts as ended, which the first process of a container may never reap
  local left=$2
  while is_of_run "$1"; do
    [ "$left" -gt 0 ] || return 1
    left=$((left - 1))
    sleep 0.1
  done
}
END
}

# Refuses a host that cannot begin, or on which an earlier run of this name lives.
check() {
  begin "$1"
  cat <<'END'
[ -w . ] || { echo "cannot write to the folder $PWD; pass another --folder"; exit 1; }
for file in "$name"-[0-9]*.pid; do
  [ -f "$file" ] && pid=$(cat "$file") && is_of_run "$pid" || continue
  echo "an earlier run $name lives there ($PWD/$file): end it by 'kill $pid', or pass another --name"
  exit 1
done
found=$(command -v "$shoal") && [ -x "$found" ] && [ ! -d "$found" ] || {
  echo "there is no command $shoal. Install Shoal there, or pass --shoal PATH; commands of ssh have PATH=$PATH"
  exit 1
}
[ -z "$script" ] || [ -f "$script" ] @ELSEWHERE@|| { echo "there is no script $script in $PWD; --folder names the hosts' folder"; exit 1; }
said=$("$shoal" run --dry-run --node-rank "$number" --run-folder "shoal-run/$name" "$@" 2>&1 </dev/null)
code=$?
case $code,$said in
  0,*"host $number of "*) ;;
  93,*) echo "$said"; exit 1 ;;
  *) echo "$shoal is no command of Shoal that runs there (exit code $code); pass --shoal PATH. It says: $said"; exit 1 ;;
esac
END
}

# The hosts may share the folder, so the first one alone removes the record of an earlier run, before the others begin.
start() {
  begin "$1"
  printf '%s\n' "SHOAL_TOKEN=$secret" 'export SHOAL_TOKEN'
  cat <<'END'
[ "$number" != 0 ] || rm -rf "shoal-run/$name"
rm -f "$name-$number.pid"
nohup "$shoal" run --node-rank "$number" --run-folder "shoal-run/$name" "$@" >"$name-$number.log" 2>&1 </dev/null &
echo $! >"$name-$number.pid" || { kill $!; exit 1; }
END
}

# Ends a host's process that does not end by itself within $2 tenths of a second.
end() {
  begin "$1"
  echo "patience=$2"
  cat <<'END'
pid=$(cat "$name-$number.pid") || exit 0
ends_within "$pid" "$patience" || {
  kill "$pid"
  ends_within "$pid" 600 || kill -KILL "$pid"
}
rm -f "$name-$number.pid"
END
}

# Prints why a host failed; $2 is the exit code of its ssh.
explain() {
  local said
  said=$(cat "$notes/$1")
  [ "$2" != 255 ] || said="${said:-ssh ended with exit code 255} ('ssh ${hosts[$1]} true' has to work without a question)"
  echo "shoal: host ${hosts[$1]}: ${said:-the start ended with exit code $2}" >&2
}

# Ends the hosts from number $1 on.
end_started() {
  local number
  for ((number = $1; number < started; ++number)); do
    { end "$number" "$2" | on "$number" >/dev/null 2>&1 ||
      echo "shoal: host ${hosts[number]}: no answer; end the process in $name-$number.pid there" >&2; } &
    ((number % 8 != 7)) || wait
  done
  wait
}

notes=$(mktemp -d) started=0 failed=0 checks=()
trap 'rm -rf "$notes"' EXIT
trap 'end_started 0 0; exit 130' INT
trap 'end_started 0 0; exit 143' TERM
for number in "${!hosts[@]}"; do
  check "$number" | on "$number" >"$notes/$number" 2>&1 &
  checks[number]=$!
  ((number % 8 != 7)) || wait  # a host on the way may refuse many connections at once
done
for number in "${!hosts[@]}"; do
  code=0
  wait "${checks[number]}" || code=$?
  ((code == 0)) || { explain "$number" "$code"; failed=1; }
done
((failed == 0)) || { echo "shoal: no host was started" >&2; exit 1; }
for number in "${!hosts[@]}"; do
  code=0 started=$((number + 1))
  start "$number" | on "$number" >"$notes/$number" 2>&1 || code=$?
  ((code != 0)) || continue
  explain "$number" "$code"
  end_started 0 0
  echo "shoal: the hosts that were started have ended" >&2
  exit 1
done
trap - TERM
trap 'echo "shoal: the run $name goes on" >&2; exit 130' INT
echo "shoal: the run $name has begun. Ctrl-C leaves it alone; on ${hosts[0]}, kill \"\$(cat $folder/$name-0.pid)\" ends it" >&2

follow() {
  begin 0
  cat <<'END'
pid=$(cat "$name-0.pid")
while is_of_run "$pid"; do sleep 0.5; done &
tail --pid=$! -n +1 -f "$name-0.log"
kill $! 2>/dev/null
END
}
follow | on 0 || true
code=$({ begin 0; echo 'sed -n "s/.*\"exit_code\": *\([0-9]*\).*/\1/p" "shoal-run/$name/exit.json" 2>/dev/null'; } | on 0) || true
[ -n "$code" ] || { echo "shoal: host ${hosts[0]} does not say how the run ends; $name-0.log there may" >&2; exit 1; }
trap 'exit 130' INT
[ "$code" = 0 ] || end_started 1 50  # the others may wait for a first host that could not begin
exit "$code"
)BASH";

// Adds the caller's variables by their names, so that their values do not stand in the file.
constexpr const char* kCallers = R"BASH(quote="'" quoted="'\\''"
for variable in @NAMES@; do
  [ -n "${!variable+set}" ] || { echo "shoal: the variable $variable is not set here" >&2; exit 2; }
  variables+=$'\n'"export $variable='${!variable//"$quote"/"$quoted"}'"
done
)BASH";

std::string replaced(const std::string& text, const std::vector<std::pair<std::string, std::string>>& values) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const auto& value) { return text.compare(at, value.first.size(), value.first) == 0; });
    out += found == values.end() ? text.substr(at, 1) : found->second;
    at += found == values.end() ? 1 : found->first.size();
  }
  return out;
}

}  // namespace

std::string ssh_script(const LaunchRequest& r) {
  std::vector<std::string> words = {"--hosts", fmt::format("{}", fmt::join(r.hosts, ","))};
  if (r.port) words.insert(words.end(), {"--port", std::to_string(*r.port)});
  for (auto& word : run_words(r)) words.push_back(std::move(word));
  std::string given;
  std::vector<std::string> callers;
  for (const auto& v : r.variables) {
    if (v.inherited) {
      callers.push_back(v.name);
    } else {
      given += fmt::format("{} {}={}", given.empty() ? "export" : "", v.name, shell_word(v.value));
    }
  }
  const bool once = r.trainer || r.elastic();  // the first host alone needs the script
  return replaced(kScript,
                  {{"@NAME@", r.name},
                   {"@HOSTS@", fmt::format("{}", fmt::join(r.hosts, " "))},
                   {"@FOLDER@", shell_word(shell_word(r.folder.empty() ? "." : r.folder))},
                   {"@SHOAL@", shell_word(shell_word(r.shoal))},
                   {"@SCRIPT@", shell_word(shell_word(r.is_script ? r.words.front() : ""))},
                   {"@ELSEWHERE@", once ? "|| [ \"$number\" != 0 ] " : ""},
                   {"@WORDS@", shell_word(shell_words(words))},
                   {"@VARIABLES@", shell_word(given)},
                   {"@CALLERS@", callers.empty() ? "" : replaced(kCallers, {{"@NAMES@", fmt::format("{}", fmt::join(callers, " "))}})}});
}

}  // namespace shoal::scheduler::cli
