// Marks that attribute a worker's output to its calls. A worker that runs one Python call at a time prints a mark before each call's first
// line on each stream. The mark is a line of its own (python/shoal/_worker/marks.py). A mark of no call (zeros) stands where the worker
// begins to serve. The node removes the marks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/id.h"

namespace shoal::scheduler {

// A call: the process that made it, and its number there, without the attempt (actors/value/call.h).
struct TaskRef {
  WorkerId caller;
  std::uint64_t number = 0;
  bool operator==(const TaskRef&) const = default;
};

struct TaskMark {
  TaskRef task;
  std::string name;  // beginning of a remote function's name; "" for a method
};
inline constexpr std::size_t kMaxMarkName = 200;  // bytes; any program may print marks, and they are kept

// Parses 32 hexadecimal digits, 16 for each field.
std::optional<TaskRef> parse_task(std::string_view text);
inline constexpr std::string_view kMark = "\x01shoal task ";
// Parses a line without its newline; nothing for a line that is no mark.
std::optional<TaskMark> parse_mark(std::string_view line);

// Calls mark(TaskMark) and text(lines) for whole lines, in order. A mark may follow an unfinished line, which then ends there: not all
// output passes through the streams that write marks.
template <class Mark, class Text>
void divide(std::string_view lines, Mark&& mark, Text&& text) {
  std::size_t begin = 0;  // start of what was not passed on
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
