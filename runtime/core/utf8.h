// Text that people and Python can read: what a process wrote may be any bytes.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// The text, with U+FFFD for each byte that is no part of valid UTF-8.
std::string valid_utf8(std::string_view text);

// The longest beginning of at most `bytes` bytes that ends between two characters.
std::string_view utf8_prefix(std::string_view text, std::size_t bytes);

}  // namespace shoal
