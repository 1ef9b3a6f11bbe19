// Which call printed what. A worker that runs one Python call at a time says so in what it prints: before the first line of each call on
// each stream stands a mark, a line of its own (python/shoal/_marks.py), and one of no call (zeros) where it begins to serve. Its node
// takes the marks out again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/id.h"

namespace shoal::scheduler {

// A call: the process that made it, and the number there, without the attempt (actors/value/call.h).
struct TaskRef {
  WorkerId caller;
  std::uint64_t number = 0;
  bool operator==(const TaskRef&) const = default;
};

struct TaskMark {
  TaskRef task;
  std::string name;  // of a remote function, its beginning; "" of a method
};
inline constexpr std::size_t kMaxMarkName = 200;  // bytes: whoever prints may write marks, and they are kept

// 32 hexadecimal digits, 16 of each.
std::optional<TaskRef> parse_task(std::string_view text);
inline constexpr std::string_view kMark = "\x01shoal task ";
// Of a line without its newline; nothing for one that is none.
std::optional<TaskMark> parse_mark(std::string_view line);

// Calls mark(TaskMark) and text(lines) for whole lines, in order. A mark may come behind a line without an end, which then ends there: what
// others than Python's streams write to the same descriptor nobody who writes marks knows of.
template <class Mark, class Text>
void divide(std::string_view lines, Mark&& mark, Text&& text) {
  std::size_t begin = 0;  // of what was not passed on
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
