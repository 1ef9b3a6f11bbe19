// Nesting depth of a JSON text. JSON code recurses once per level, so texts from outside are refused beyond a depth that its stack holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace shoal {

inline constexpr std::size_t kMaxNesting = 64;

inline std::size_t nesting(std::string_view json) {
  std::size_t depth = 0, deepest = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace shoal
