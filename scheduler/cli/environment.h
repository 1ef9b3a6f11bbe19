// The environment of the command as a value. main.cc makes it from the process's variables, and no other file reads these.
#pragma once

#include <chrono>
#include <optional>
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
  // `entries`: NAME=VALUE each.
  explicit Environment(std::vector<std::string> entries = {}) : entries_(std::move(entries)) {}

  std::string get(std::string_view name) const;  // "" when absent
  std::optional<std::string> find(std::string_view name) const;
  // All variables, for processes that the command starts.
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

// The interpreter: $SHOAL_PYTHON, or the one beside this command (`argv0`), or that of $VIRTUAL_ENV, or python3.
std::string find_python(const Environment& environment, const std::string& argv0);

// The variables of the submitter that a job's processes get.
std::vector<std::pair<std::string, std::string>> job_variables(const Environment& environment);

// The limits of memory at which this host's node ends workers: $SHOAL_MEMORY_USAGE_THRESHOLD and $SHOAL_MEMORY_LIMIT. Python's shoal.init
// reads them, too.
Result<MemoryRule> memory_rule(const Environment& environment);

// How long a signal may stop a worker before its node ends it: $SHOAL_STOPPED_WORKER_LIMIT, in seconds.
Result<std::chrono::seconds> stopped_limit(const Environment& environment);

// How long this host's node goes on without a head: $SHOAL_HEAD_ABSENCE_LIMIT, in seconds.
Result<std::chrono::seconds> head_absence_limit(const Environment& environment);

// Refuses a setting of Shoal that is on or off, with a value that is neither (reason Usage).
Result<void> check_switch(const std::string& name, const std::string& value);
// check_switch() for each setting of a script that is on or off: $SHOAL_FSDP and others.
Result<void> check_switches(const Environment& environment);

// The defaults of the options for a store in etcd, from variables $SHOAL_STORE_..
etcd::Access store_access(const Environment& environment);

}  // namespace shoal::scheduler::cli
