// What workers print: kept in files under the session's logs/, the last lines of stderr also in memory, for the cause
// of a death.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "runtime/log/log.h"
#include "scheduler/node/launcher.h"
#include "scheduler/node/task_marks.h"

namespace shoal::scheduler {

class LogBook {
 public:
  struct Options {
    std::string folder;                      // "" keeps no files
    std::size_t max_file_bytes = 16u << 20;  // then it becomes the older half, in place of the one before
    std::size_t tail_lines = 20;
    std::size_t tail_bytes = 4000;
    std::size_t max_files = 400;               // of ended workers; the oldest go first
    std::size_t max_ended_bytes = 512u << 20;  // of all of them
    // What is left of the disk: below it nothing is written any more, until there is more again. Looked at once in so many bytes.
    std::size_t min_free_bytes = 256u << 20, look_after_bytes = 1u << 20;
    std::function<std::size_t(const std::string& folder)> free_bytes;  // empty: ask the file system
  };
  explicit LogBook(Options options) : options_(std::move(options)) {}

  void write(WorkerId worker, Launcher::Stream stream, std::string_view lines);
  // What comes next on this stream is printed by that call. The last kMaxSpans pieces of a stream are known by it.
  void mark(WorkerId worker, Launcher::Stream stream, TaskMark mark);
  static constexpr std::size_t kMaxSpans = 256;
  // Of the function that prints on this stream now; "" of none.
  std::string_view function(WorkerId worker, Launcher::Stream stream) const;
  // The last lines of its stderr, oldest first; "" when it said nothing.
  std::string tail(WorkerId worker) const;
  // Its files are closed and stay readable.
  void close(WorkerId worker);
  // The last `bytes` of a stream, of both halves. NotFound when there is no such file.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const;
  // What is left of what that call printed; "" when it printed nothing. Unimplemented/NoMarks when the worker did not say what its calls
  // print, on neither stream; NotFound when nothing is known of it here.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes, TaskRef task) const;
  // What is kept of a stream, at most the last `bytes`: calls piece(function, text) with all of it, in order.
  void pieces(WorkerId worker, Launcher::Stream stream, std::size_t bytes,
              const std::function<void(std::string_view, std::string_view)>& piece) const;

 private:
  struct Span {
    TaskMark mark;
    std::uint64_t from = 0, to = 0;  // of all that was written
  };
  struct Spans {
    bool marked = false;
    TaskMark now;
    std::uint64_t written = 0;
    std::deque<Span> spans;  // the oldest first
  };
  struct Ended {
    WorkerId worker;
    std::size_t bytes = 0;  // of its files
    std::array<Spans, 2> spans;
  };
  struct Entry {
    runtime::Log out, err;
    std::deque<std::string> tail;
    std::array<Spans, 2> spans;  // of stdout and stderr
  };
  static std::size_t index(Launcher::Stream stream) { return stream == Launcher::Stream::kOut ? 0 : 1; }
  const std::array<Spans, 2>* spans_of(WorkerId worker) const;
  std::string path(WorkerId worker, Launcher::Stream stream) const;
  const Options options_;
  std::map<WorkerId, Entry> open_;
  bool disk_has_room(std::size_t bytes);
  std::size_t bytes_of(WorkerId worker) const;
  void forget_oldest();
  std::deque<Ended> ended_;
  std::size_t ended_bytes_ = 0;
  std::size_t since_look_ = 0;  // bytes
  bool has_room_ = true, looked_ = false;
};

}  // namespace shoal::scheduler
