// How the CLI speaks: data on stdout (a table, or one JSON object with a schema), talk on stderr, exit codes with a
// meaning.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/cluster/cluster.h"
#include "runtime/core/result.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::cli {

// Documented in the README of this folder.
enum Exit : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNotFoundExit = 3,
  kAuth = 4,
  kUnreachable = 5,
  kTimedOut = 6,
  kDoesNotFit = 7,
  // of submit, before the script runs
  kSubmitOther = 120,
  kSubmitUsage = 121,
  kSubmitVersion = 122,
  kSubmitAuth = 123,
  kSubmitUnreachable = 124,
  kSubmitDoesNotFit = 125,
  kSubmitCannotRun = 126,
  kSubmitNotFound = 127,
};

int exit_code(const Error& error);
int submit_exit_code(const Error& error);

// Prints the error to stderr, or as {"schema": "shoal.error/1", ...} to stdout.
void print_error(const Error& error, bool json);

// Without those that only say which node it is.
actors::Resources for_people(actors::Resources resources);

// Columns as wide as their widest cell.
void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

}  // namespace shoal::scheduler::cli
