// The output of workers, in files under the session's logs/. The last lines of stderr are also kept in memory, for causes of death.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "runtime/log/log.h"
#include "scheduler/node/logs/task_marks.h"
#include "scheduler/node/processes/launcher.h"

namespace shoal::scheduler {

class LogBook {
 public:
  struct Options {
    std::string folder;  // "": no files are written
    // Limit of the file that is written. A full file is kept as the stream's older file, and the older one before it is removed.
    std::size_t max_file_bytes = 16u << 20;
    std::size_t tail_lines = 20;
    std::size_t tail_bytes = 4000;
    std::size_t max_files = 400;               // limit of the number of ended workers' files; the oldest are removed
    std::size_t max_ended_bytes = 512u << 20;  // limit of the bytes in files of ended workers
    // Nothing is written while the disk has less than `min_free_bytes` free. This is checked once per `check_after_bytes` written.
    std::size_t min_free_bytes = 256u << 20, check_after_bytes = 1u << 20;
    std::function<std::size_t(const std::string& folder)> free_bytes;  // empty: the file system's own figure
  };
  explicit LogBook(Options options) : options_(std::move(options)) {}

  void write(WorkerId worker, Launcher::Stream stream, std::string_view lines);
  // Attributes what the stream prints from now on to the call in the mark. A stream has at most kMaxSpans pieces with calls; the oldest are
  // forgotten.
  void mark(WorkerId worker, Launcher::Stream stream, TaskMark mark);
  static constexpr std::size_t kMaxSpans = 256;
  // The name of the function that prints on this stream at present; "" if there is none.
  std::string_view function(WorkerId worker, Launcher::Stream stream) const;
  // The last lines of the worker's stderr, oldest first; "" if it printed none.
  std::string tail(WorkerId worker) const;
  // Closes the worker's files, which stay readable.
  void close(WorkerId worker);
  // The last `bytes` of a stream, from both of its files. Returns NotFound if there is no file.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const;
  // The part of a call's output that is kept; "" if the call printed nothing. Returns Unimplemented/NoMarks if the worker has marked no
  // call on either stream, NotFound if the worker is unknown here.
  Result<std::string> read(WorkerId worker, Launcher::Stream stream, std::size_t bytes, TaskRef task) const;
  // Calls piece(function, text), in order, for what is kept of a stream, at most the last `bytes`. `function` is the one that printed
  // `text`.
  void pieces(WorkerId worker, Launcher::Stream stream, std::size_t bytes,
              const std::function<void(std::string_view, std::string_view)>& piece) const;

 private:
  struct Span {
    TaskMark mark;
    std::uint64_t from = 0, to = 0;  // offsets in all output that the stream has had
  };
  struct Spans {
    bool marked = false;
    TaskMark now;
    std::uint64_t written = 0;
    std::deque<Span> spans;  // oldest first
  };
  struct Ended {
    WorkerId worker;
    std::size_t bytes = 0;  // size of the worker's files
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
  std::size_t since_check_ = 0;  // bytes written since free_bytes was checked
  bool has_room_ = true, checked_ = false;
};

}  // namespace shoal::scheduler
