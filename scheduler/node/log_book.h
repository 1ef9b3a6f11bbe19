// The output of workers, in files under the session's logs/. The last lines of stderr are also in memory, for causes of death.
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
    std::size_t max_file_bytes = 16u << 20;  // a full file replaces the older half
    std::size_t tail_lines = 20;
    std::size_t tail_bytes = 4000;
    std::size_t max_files = 400;               // files of ended workers; the oldest go first
    std::size_t max_ended_bytes = 512u << 20;  // total of their files
    // Nothing is written while the disk has less than `min_free_bytes` free, which is checked every `look_after_bytes`.
    std::size_t min_free_bytes = 256u << 20, look_after_bytes = 1u << 20;
    std::function<std::size_t(const std::string& folder)> free_bytes;  // empty: ask the file system
  };
  explicit LogBook(Options options) : options_(std::move(options)) {}

  void write(WorkerId worker, Launcher::Stream stream, std::string_view lines);
  // Attributes what follows on this stream to the mark's call. A stream keeps the calls of its last kMaxSpans pieces.
  void mark(WorkerId worker, Launcher::Stream stream, TaskMark mark);
  static constexpr std::size_t kMaxSpans = 256;
  // The name of the function that prints on this stream now; "" if there is none.
  std::string_view function(WorkerId worker, Launcher::Stream stream) const;
  // The last lines of the worker's stderr, oldest first; "" if it printed none.
  std::string tail(WorkerId worker) const;
  // Closes the worker's files, which stay readable.
  void close(WorkerId worker);
  // The last `bytes` of a stream, over both halves. Returns NotFound if there is no such file.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const;
  // The kept part of the call's output; "" if it printed nothing. Returns Unimplemented/NoMarks if the worker has marked no call on either
  // stream, NotFound if the worker is unknown here.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes, TaskRef task) const;
  // Calls piece(function, text) for all that is kept of a stream, at most the last `bytes`, in order.
  void pieces(WorkerId worker, Launcher::Stream stream, std::size_t bytes,
              const std::function<void(std::string_view, std::string_view)>& piece) const;

 private:
  struct Span {
    TaskMark mark;
    std::uint64_t from = 0, to = 0;  // offsets in all that was written
  };
  struct Spans {
    bool marked = false;
    TaskMark now;
    std::uint64_t written = 0;
    std::deque<Span> spans;  // oldest first
  };
  struct Ended {
    WorkerId worker;
    std::size_t bytes = 0;  // size of its files
    std::array<Spans, 2> spans;
  };
  struct Entry {
    runtime::Log out, err;
    std::deque<std::string> tail;
    std::array<Spans, 2> spans;  // stdout, stderr
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
  std::size_t since_look_ = 0;  // bytes since the last check of the disk
  bool has_room_ = true, looked_ = false;
};

}  // namespace shoal::scheduler
