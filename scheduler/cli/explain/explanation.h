// The meanings of codes, reasons, exit codes and verdicts. explanations.awk makes their source of tables in docs/errors.md and
// docs/runs.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::scheduler::cli {

struct Explanation {
  enum class Kind { kCode, kReason, kExit, kVerdict };
  Kind kind;
  std::string_view name;   // Unavailable, ActorDied, 93 or straggler
  std::string_view codes;  // a reason has those with which it is seen, as in "Unavailable, NotFound"
  std::string_view meaning;
  std::string_view causes;  // "", except for a reason
  std::string_view remedy;
};

// All entries, in the order of the documents' pages.
std::span<const Explanation> all_explanations();

// True if errors with this reason may have this code.
bool has_code(const Explanation& reason, std::string_view code);

// `CODE/REASON` for each code of a reason, else the name.
std::string title_of(const Explanation& entry);

// Finds the entries for a code (with all its reasons behind it), a reason, `CODE/REASON`, an exit code or a verdict's code. Case does not
// count, nor does what surrounds the word in a message, as in `error[CODE/REASON]:`. Returns none for an unknown word.
std::vector<Explanation> explain(std::string_view text);

// The code, reason or pair that a mistyped text may mean; "" if none is near.
std::string nearest_explained(std::string_view text);

}  // namespace shoal::scheduler::cli
