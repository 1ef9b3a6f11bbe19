// Suggestions for mistyped words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::scheduler::cli {

// The first word with the smallest edit distance (insert, delete, change, swap adjacent letters). A word that starts with `typed` (two
// letters or more) has distance 0. Returns "" if every distance is above 2, and above a third of the word's letters.
std::string nearest(std::string_view typed, const std::vector<std::string>& words);

}  // namespace shoal::scheduler::cli
