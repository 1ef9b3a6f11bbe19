#include "runtime/core/printable.h"

#include <algorithm>
#include <cstdio>

#include "runtime/core/utf8.h"

namespace shoal {

namespace {

constexpr char kEscape = '\x1b';

struct Character {
  std::size_t length;
  bool plain;  // no escape is needed
};

// The character at the start of the text, which is not empty. A byte that is not part of valid UTF-8 counts as a character.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {1, byte(0) >= 0x20 && byte(0) != 0x7f};
  const std::size_t length = utf8_character(text);
  if (length == 0) return {1, false};
  bool plain = true;
  if (length == 2) {
    plain = !(byte(0) == 0xc2 && byte(1) < 0xa0) && !(byte(0) == 0xd8 && byte(1) == 0x9c);  // C1, U+061C
  } else if (length == 3 && byte(0) == 0xe2 && byte(1) == 0x80) {
    const unsigned last = byte(2);
    plain = last != 0x8e && last != 0x8f && !(last >= 0xa8 && last <= 0xae);  // U+200E, U+200F, U+2028 to U+202E
  } else if (length == 3 && byte(0) == 0xe2 && byte(1) == 0x81) {
    plain = byte(2) < 0xa6 || byte(2) > 0xa9;  // U+2066 to U+2069
  }
  return {length, plain};
}

std::string unicode_escape(std::string_view character) {
  unsigned point = static_cast<unsigned char>(character[0]);
  if (character.size() > 1) point &= 0x7fu >> character.size();
  for (const char c : character.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3f);
  char out[16];
  std::snprintf(out, sizeof out, "\\u%04x", point);
  return out;
}

std::string escape(std::string_view character) {
  if (character.size() > 1) return unicode_escape(character);
  if (character[0] == '\n') return "\\n";
  if (character[0] == '\r') return "\\r";
  if (character[0] == '\t') return "\\t";
  char out[8];
  std::snprintf(out, sizeof out, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(character[0])));
  return out;
}

// The bytes before the first character that needs an escape.
std::size_t printable_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [length, plain] = first_character(text.substr(at));
    if (!plain) break;
    at += length;
  }
  return at;
}

// Copies plain characters. At any other one calls replace(rest, out), where `rest` is the text from there on. replace() appends the
// replacement to `out`, and returns how many bytes of `rest` it replaces.
template <class Replace>
std::string replaced(std::string_view text, Replace replace) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const std::size_t plain = printable_prefix(text);
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) return out;
    text.remove_prefix(replace(text, out));
  }
}

std::size_t append_escape(std::string_view rest, std::string& out) {
  const auto character = rest.substr(0, first_character(rest).length);
  out += escape(character);
  return character.size();
}

// The length of the sequence at the start of the text if it only colours text (m), erases within the line (K), or moves within it (C, D,
// G); else 0 (ECMA-48, control sequences).
std::size_t line_sequence(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = std::min(text.find_first_not_of("0123456789;:", 2), text.size());
  return end < text.size() && std::string_view("mKCDG").find(text[end]) != std::string_view::npos ? end + 1 : 0;
}

}  // namespace

bool is_printable(std::string_view text) { return printable_prefix(text) == text.size(); }

std::string printable(std::string_view text) { return replaced(text, append_escape); }

std::string printable_lines(std::string_view text, std::string_view mark) {
  return replaced(text, [mark](std::string_view rest, std::string& out) -> std::size_t {
    if (rest[0] != '\n' && rest[0] != '\t') return append_escape(rest, out);
    out += rest[0];
    if (rest[0] == '\n') out += mark;
    return 1;
  });
}

std::string terminal_output(std::string_view text) {
  return replaced(text, [](std::string_view rest, std::string& out) -> std::size_t {
    const std::size_t kept = std::string_view("\n\t\r\b").find(rest[0]) != std::string_view::npos ? 1
                             : rest[0] == kEscape                                                 ? line_sequence(rest)
                                                                                                  : 0;
    if (kept == 0) return append_escape(rest, out);
    out += rest.substr(0, kept);
    return kept;
  });
}

std::string printable_json(std::string_view text) {
  return replaced(text, [](std::string_view rest, std::string& out) -> std::size_t {
    const auto character = rest.substr(0, first_character(rest).length);
    const bool layout = character == "\n" || character == "\t";  // white space between the JSON values, which stays
    out += layout ? std::string(character) : unicode_escape(character);
    return character.size();
  });
}

}  // namespace shoal
