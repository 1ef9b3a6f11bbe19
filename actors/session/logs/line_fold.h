// Folds equal lines of several processes: the first is shown, later ones are counted. Used for terminals only, since logs keep all lines.
// No I/O.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "runtime/loop/clock.h"

namespace shoal::actors {

class LineFold {
 public:
  struct Options {
    runtime::Duration window = std::chrono::seconds(2);  // from a line's first appearance: the time in which repetitions are folded
    std::size_t max_lines = 256;                         // number of lines that are remembered
  };
  explicit LineFold(Options options) : options_(options) {}

  // The text to print now: "(who) line\n", or nothing if another process printed the line within the window.
  std::string add(const std::string& who, std::string_view line, runtime::TimePoint now);
  // The counts of lines whose window is over: "(who) line (×8; SHOAL_DEDUP_LOGS=0 shows each)\n".
  std::string over(runtime::TimePoint now);
  // The counts of all remembered lines, also of those whose window is not over.
  std::string rest();
  // When over() has to be called next; nullopt if no line has been repeated.
  std::optional<runtime::TimePoint> next() const;

 private:
  struct Seen {
    runtime::TimePoint since;
    std::string first;  // the process that printed the line first
    std::set<std::string> others;
    std::size_t repeats = 0;
  };
  std::string forget_oldest();
  std::string say(const std::string& line, const Seen& seen) const;

  const Options options_;
  std::map<std::string, Seen, std::less<>> seen_;
  std::deque<std::string> order_;  // the oldest first
};

}  // namespace shoal::actors
