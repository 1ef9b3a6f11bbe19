// Valid UTF-8 for users and Python, from the arbitrary bytes that a process wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// The length of the valid character at the start of the text, or 0 (Unicode 15, table 3-7: no overlong forms, no surrogates).
std::size_t utf8_character(std::string_view text);

// Returns the text with U+FFFD in place of each byte that is not part of valid UTF-8.
std::string valid_utf8(std::string_view text);

// Returns the longest prefix of at most `bytes` bytes that ends between two characters.
std::string_view utf8_prefix(std::string_view text, std::size_t bytes);

}  // namespace shoal
