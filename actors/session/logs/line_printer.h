// Prints workers' output on this process's stdout and stderr, each line with its source. On a terminal, equal lines are folded
// (line_fold.h), and sequences that would change more than the line are escaped (runtime/core/printable.h). A file gets the bytes.
//
// Loop thread only.
#pragma once

#include <string>
#include <string_view>

#include "actors/session/logs/line_fold.h"

namespace shoal::actors {

class LinePrinter {
 public:
  // `fold`: fold equal lines. `clock` outlives this object.
  LinePrinter(runtime::Clock& clock, bool fold);

  void print(const std::string& who, bool to_stderr, std::string_view lines);
  // Prints the counts of the lines that were folded so far.
  void flush();

 private:
  struct Stream {
    bool terminal = false, folds = false;
    LineFold fold{{}};
    runtime::Timer over;
  };
  void write(bool to_stderr, const std::string& text);
  void wait(bool to_stderr);

  runtime::Clock& clock_;
  Stream streams_[2];  // stdout, stderr
};

}  // namespace shoal::actors
