#include "scheduler/cli/launch/ssh_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler::cli {

namespace {

// {name}, {hosts} and so on are replaced. The hosts' shells read $folder, $shoal and $words again, so that these are quoted twice.
constexpr const char* kScript = R"BASH(#!/bin/bash
# Starts the run on each host, and follows the output of the first one. Ctrl-C leaves the run alone.
# SIGTERM to a host's process (NAME-NUMBER.pid) asks it to save and leave; on the first host it ends the run.
set -euo pipefail
hosts=({hosts})
folder={folder}
shoal={shoal}
words={words}
# The hosts may share the folder, so the first one alone removes the record of an earlier run, before the others begin.
# The hosts meet by a secret. It goes through stdin: every user of a host can read the words of a command.
secret=$(openssl rand -hex 32)

for number in "${{!hosts[@]}}"; do
  ssh -o BatchMode=yes "${{hosts[number]}}" "cd $folder && {{ [ $number != 0 ] || rm -rf shoal-run/{name}; }} &&
    read -r SHOAL_TOKEN && export SHOAL_TOKEN && {{
    nohup $shoal run --node-rank $number --run-folder shoal-run/{name} $words >{name}-$number.log 2>&1 &
    echo \$! >{name}-$number.pid; }}" <<<"$secret"
done

ssh -o BatchMode=yes "${{hosts[0]}}" "cd $folder && tail --pid=\$(cat {name}-0.pid) -n +1 -f {name}-0.log"
exit "$(ssh -o BatchMode=yes "${{hosts[0]}}" "cd $folder && sed -n 's/.*\"exit_code\": *\([0-9]*\).*/\1/p' shoal-run/{name}/exit.json")"
)BASH";

}  // namespace

std::string ssh_script(const LaunchRequest& r) {
  std::vector<std::string> words = {"--hosts", fmt::format("{}", fmt::join(r.hosts, ","))};
  for (auto& word : run_words(r)) words.push_back(std::move(word));
  return fmt::format(kScript, fmt::arg("name", r.name), fmt::arg("hosts", fmt::join(r.hosts, " ")),
                     fmt::arg("folder", shell_word(shell_word(r.folder.empty() ? "." : r.folder))),
                     fmt::arg("shoal", shell_word(shell_word(r.shoal))), fmt::arg("words", shell_word(shell_words(words))));
}

}  // namespace shoal::scheduler::cli
