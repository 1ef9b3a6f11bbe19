// Output of the CLI: data on stdout (a table, or one JSON object with a schema), messages on stderr, and the exit codes.
//
// Verbs print through this file alone. It escapes the texts that they print, since other processes chose many of them
// (runtime/core/printable.h).
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/core/printable.h"
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

// A text whose lines print() keeps.
struct Lines {
  std::string_view text;
};

namespace detail {
template <class T>
auto shown(const T& value) {
  if constexpr (std::is_same_v<T, Lines>) {
    return printable_lines(value.text);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable(value);
  } else {
    return value;
  }
}
template <class T>
using Shown = decltype(shown(std::declval<const T&>()));
}  // namespace detail

// Prints bytes as they are. finish_output() reports an error.
void print_bytes(std::FILE* to, std::string_view bytes);

// Prints as fmt::print, with each text argument on one line and escaped. Only the format may begin lines, and arguments of the type Lines.
template <class... Args>
void print(std::FILE* to, fmt::format_string<detail::Shown<Args>...> format, const Args&... args) {
  print_bytes(to, fmt::format(format, detail::shown(args)...));
}

// Prints a program's output, each line behind `prefix`. On a terminal, sequences that would change more than the line are escaped.
void print_output(std::FILE* to, std::string_view prefix, std::string_view lines);
// As print_output(), without a prefix.
void print_output(std::FILE* to, std::string_view text);

// Ends the output: returns kFailed in place of kOk, and prints why, if stdout has not taken all of it. A reader that has gone, as `head`
// goes, is no failure.
int finish_output(int code);

// Prints the error to stderr, or as {"schema": "shoal.error/1", ...} to stdout.
void print_error(const Error& error, bool json);

// JSON on one line. Bytes that are no UTF-8 are replaced.
std::string json_text(const nlohmann::json& value);
void print_json(const nlohmann::json& out);

// Removes the resources that only identify a node.
actors::Resources for_people(actors::Resources resources);

// Prints a table, whose columns are as wide as their widest cell.
void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

}  // namespace shoal::scheduler::cli
