#include "scheduler/node/logs/task_marks.h"

namespace shoal::scheduler {

namespace {
constexpr std::size_t kDigits = 16;
}  // namespace

std::optional<TaskRef> parse_task(std::string_view text) {
  if (text.size() != 2 * kDigits) return {};
  const auto caller = parse_hex(text.substr(0, kDigits)), number = parse_hex(text.substr(kDigits));
  if (!caller || !number) return {};
  return TaskRef{WorkerId{*caller}, *number};
}

std::optional<TaskMark> parse_mark(std::string_view line) {
  if (!line.starts_with(kMark)) return {};
  line.remove_prefix(kMark.size());
  const auto task = parse_task(line.substr(0, 2 * kDigits));
  if (!task) return {};
  line.remove_prefix(2 * kDigits);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line.size() > kMaxMarkName) {
    std::size_t end = kMaxMarkName;
    // Cuts no UTF-8 character in two.
    while (end > 0 && (line[end] & 0xc0) == 0x80) --end;
    line = line.substr(0, end);
  }
  return TaskMark{*task, std::string(line)};
}

}  // namespace shoal::scheduler
