// What somebody may have meant who mistyped a word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::scheduler::cli {

// The word that differs least (letters added, left out, changed or swapped with the next), the first of several; a word that goes on as
// `typed` does differs by nothing. "" when all differ by more than a third of their letters, or 2.
std::string nearest(std::string_view typed, const std::vector<std::string>& words);

}  // namespace shoal::scheduler::cli
