// Marks that attribute a worker's output to its calls. A worker that runs one Python call at a time prints a mark before each call's first
// line on each stream. The mark is a line of its own (python/shoal/_worker/marks.py). Where the worker begins to serve, it prints a mark
// without a call (zeros). The node removes the marks from the output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/id.h"

namespace shoal::scheduler {

// A call: the process that made it, and the number it has there, without the attempt (actors/value/call.h).
struct TaskRef {
  WorkerId caller;
  std::uint64_t number = 0;
  bool operator==(const TaskRef&) const = default;
};

struct TaskMark {
  TaskRef task;
  // The first bytes of a remote function's name; "" for a method.
  std::string name;
};
// Limit in bytes: any program may print marks, and the node keeps their names.
inline constexpr std::size_t kMaxMarkName = 200;

// Parses a call: 32 hexadecimal digits, 16 for each of its fields.
std::optional<TaskRef> parse_task(std::string_view text);
inline constexpr std::string_view kMark = "\x01shoal task ";
// Parses a line without its newline. Returns nullopt if the line is not a mark.
std::optional<TaskMark> parse_mark(std::string_view line);

// Divides output into marks and text: calls mark(TaskMark) and text(lines) with whole lines, in order. A mark may follow an unfinished
// line, since some output bypasses the streams that write marks. The unfinished line ends there.
template <class Mark, class Text>
void divide(std::string_view lines, Mark&& mark, Text&& text) {
  std::size_t begin = 0;  // begin of the part that was not passed on yet
  for (std::size_t at = lines.find(kMark); at != std::string_view::npos; at = lines.find(kMark, at)) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const auto found = parse_mark(lines.substr(at, end - at));
    if (!found) {
      ++at;
      continue;
    }
    const std::string_view before = lines.substr(begin, at - begin);
    if (before.ends_with('\n')) {
      text(before);
    } else if (!before.empty()) {
      text(std::string_view(std::string(before) + '\n'));
    }
    mark(*found);
    begin = at = std::min(end + 1, lines.size());
  }
  if (begin < lines.size()) text(lines.substr(begin));
}

}  // namespace shoal::scheduler
