// Output of the CLI: data on stdout (a table, or one JSON object with a schema), messages on stderr, and the exit codes.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/result.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::cli {

// The command's exit codes. The README of this folder explains them.
enum Exit : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNotFoundExit = 3,
  kAuth = 4,
  kUnreachable = 5,
  kTimedOut = 6,
  kDoesNotFit = 7,
  // exit codes of submit before the script runs
  kSubmitOther = 120,
  kSubmitUsage = 121,
  kSubmitVersion = 122,
  kSubmitAuth = 123,
  kSubmitUnreachable = 124,
  kSubmitDoesNotFit = 125,
  kSubmitCannotRun = 126,
  kSubmitNotFound = 127,
};

// True for the errors of a hello in which one side lacks the other's token or certificate, or does not trust it.
bool is_refusal(const Error& error);
int exit_code(const Error& error);
int submit_exit_code(const Error& error);

// Prints the error to stderr, or as {"schema": "shoal.error/1", ...} to stdout.
void print_error(const Error& error, bool json);

// Prints one line. Bytes that are no UTF-8 are replaced.
void print_json(const nlohmann::json& out);

// Removes the resources that only identify a node.
actors::Resources for_people(actors::Resources resources);

// Prints a table, whose columns are as wide as their widest cell.
void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

}  // namespace shoal::scheduler::cli
