// What submitting a job takes of Python (python/shoal/_submitting.py): reading YAML, and making a package of a folder.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/client.h"

namespace shoal::scheduler::cli {

// What it prints, but for its newline. InvalidArgument with what it says instead.
Result<std::string> ask_python(const std::string& python, const std::vector<std::string>& words);

// A cluster over several hosts may run a job on another one: its working_dir goes along, by the head, and _entrypoint.py finds it there.
// `store`: where this host's session keeps folders.
Result<void> ship_folder(const std::string& python, const std::string& store, Client& head, const std::string& runtime_env,
                         actors::JobSpec& spec);

}  // namespace shoal::scheduler::cli
