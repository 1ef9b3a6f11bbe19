// Text for a terminal, a log or a table, from text that other processes chose: names, errors, paths, output.
//
// A terminal obeys control characters: they change its title, its clipboard and text that it has shown. Bidirectional controls show text in
// another order, and a newline begins a line that looks like one of Shoal's. An escape shows each of them as \x1b, \n or \u202e. All other
// characters stay as they are, those of every language included. A backslash stays, too: escaped text is for people, and is never read
// back.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// True if the text has nothing to escape: valid UTF-8 without control characters (C0, DEL, C1), without controls of Unicode's property
// Bidi_Control, and without the separators U+2028 and U+2029. Allocates nothing.
bool is_printable(std::string_view text);

// The text on one line: a newline and a tab are escaped, too.
std::string printable(std::string_view text);

// The text with its lines and tabs. `mark` begins each line but the first, so that no line is taken for another entry.
std::string printable_lines(std::string_view text, std::string_view mark = "");

// A program's output for a terminal: lines, tabs, colours (SGR), carriage returns and backspaces, moves and erasing within the line stay.
// Other sequences are escaped: those of the title, the clipboard, the screen or the keyboard.
std::string terminal_output(std::string_view text);

// JSON text, whose strings have C0 controls escaped already, with the other characters escaped as JSON does: \u0085, \u202e.
std::string printable_json(std::string_view text);

}  // namespace shoal
