#include "scheduler/cli/suggestion/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shoal::scheduler::cli {

namespace {

// The number of edits between two words (optimal string alignment distance).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(last, row);
  }
  return last.back();
}

}  // namespace

std::string nearest(std::string_view typed, const std::vector<std::string>& words) {
  std::string out;
  std::size_t least = ~std::size_t{0};
  for (const auto& word : words) {
    const std::size_t apart = typed.size() > 1 && word.starts_with(typed) ? 0 : distance(typed.substr(0, 64), word);
    if (apart < least && apart <= std::max<std::size_t>(2, word.size() / 3) && apart < word.size()) {
      least = apart;
      out = word;
    }
  }
  return out;
}

}  // namespace shoal::scheduler::cli
