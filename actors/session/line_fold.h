// Lines of several processes, of which many say the same: the first is shown, those that repeat it are counted. For terminals, where
// people read; whoever keeps the lines gets all of them. Pure.
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
    runtime::Duration window = std::chrono::seconds(2);  // from the first
    std::size_t max_lines = 256;                         // that are remembered
  };
  explicit LineFold(Options options) : options_(options) {}

  // What to print now: "(who) line\n", or nothing when another process has said the same within the window.
  std::string add(const std::string& who, std::string_view line, runtime::TimePoint now);
  // What to say of lines whose window is over: "(who) line (and 7 more times, by 7 others)\n".
  std::string over(runtime::TimePoint now);
  // Of all of them, whatever the time.
  std::string rest();
  // When to ask over() again, if there is anything to be said then.
  std::optional<runtime::TimePoint> next() const;

 private:
  struct Seen {
    runtime::TimePoint since;
    std::string first;  // who said it
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
