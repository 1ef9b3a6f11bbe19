// The environment of the command as a value. main.cc makes it from the process's variables, and no other file reads these.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/result.h"
#include "scheduler/etcd/access.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

class Environment {
 public:
  // NAME=VALUE each.
  explicit Environment(std::vector<std::string> entries = {}) : entries_(std::move(entries)) {}

  std::string get(std::string_view name) const;  // "" when absent
  // For processes that the command starts.
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

// The interpreter: $SHOAL_PYTHON, or the one beside this command (`argv0`), or that of $VIRTUAL_ENV, or python3.
std::string find_python(const Environment& environment, const std::string& argv0);

// The variables of the submitter that a job's processes get.
std::vector<std::pair<std::string, std::string>> job_variables(const Environment& environment);

// Limits at which this host's node ends workers: $SHOAL_MEMORY_USAGE_THRESHOLD and $SHOAL_MEMORY_LIMIT, which `init` reads, too.
Result<MemoryRule> memory_rule(const Environment& environment);

// $SHOAL_STORE_..: the defaults of the options for a store in etcd.
etcd::Access store_access(const Environment& environment);

}  // namespace shoal::scheduler::cli
