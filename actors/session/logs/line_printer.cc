#include "actors/session/logs/line_printer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/core/printable.h"

namespace shoal::actors {

LinePrinter::LinePrinter(runtime::Clock& clock, bool fold) : clock_(clock) {
  streams_[0].terminal = isatty(STDOUT_FILENO) == 1;
  streams_[1].terminal = isatty(STDERR_FILENO) == 1;
  for (Stream& stream : streams_) stream.folds = fold && stream.terminal;
}

void LinePrinter::print(const std::string& who, bool to_stderr, std::string_view lines) {
  Stream& stream = streams_[to_stderr];
  const auto now = clock_.now();
  const std::string source = printable(who);
  std::string out;
  for (std::size_t from = 0; from < lines.size();) {
    const auto end = std::min(lines.find('\n', from), lines.size());
    const auto bytes = lines.substr(from, end - from);
    const std::string line = stream.terminal ? terminal_output(bytes) : std::string(bytes);
    out += stream.folds ? stream.fold.add(source, line, now) : "(" + source + ") " + line + "\n";
    from = end + 1;
  }
  write(to_stderr, out);
  wait(to_stderr);
}

void LinePrinter::wait(bool to_stderr) {
  Stream& stream = streams_[to_stderr];
  const auto next = stream.fold.next();
  if (!next) return;
  stream.over = clock_.after(std::max(runtime::Duration(0), *next - clock_.now()), [this, to_stderr] {
    write(to_stderr, streams_[to_stderr].fold.over(clock_.now()));
    wait(to_stderr);
  });
}

void LinePrinter::flush() {
  for (const bool to_stderr : {false, true}) write(to_stderr, streams_[to_stderr].fold.rest());
}

void LinePrinter::write(bool to_stderr, const std::string& text) {
  std::FILE* const stream = to_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace shoal::actors
