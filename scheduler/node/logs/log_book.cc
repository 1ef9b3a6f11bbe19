#include "scheduler/node/logs/log_book.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

namespace shoal::scheduler {

namespace {

// The name under which spdlog keeps a file that is full.
std::string rotated(const std::string& file) { return spdlog::sinks::rotating_file_sink_mt::calc_filename(file, 1); }

std::optional<std::string> last_bytes(const std::string& path, std::size_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto size = static_cast<std::size_t>(file.tellg());
  std::string out(std::min(size, bytes), 0);
  file.seekg(static_cast<std::streamoff>(size - out.size()));
  file.read(out.data(), static_cast<std::streamsize>(out.size()));
  return out;
}

}  // namespace

std::string LogBook::path(WorkerId worker, Launcher::Stream stream) const {
  return options_.folder + "/worker-" + to_string(worker) + (stream == Launcher::Stream::kOut ? ".out" : ".err");
}

void LogBook::write(WorkerId worker, Launcher::Stream stream, std::string_view lines) {
  auto& entry = open_[worker];
  if (stream == Launcher::Stream::kErr) {
    std::size_t from = 0;
    while (from < lines.size()) {
      const auto end = std::min(lines.find('\n', from), lines.size());
      entry.tail.emplace_back(lines.substr(from, std::min(end - from, options_.tail_bytes)));
      if (entry.tail.size() > options_.tail_lines) entry.tail.pop_front();
      from = end + 1;
    }
  }
  if (options_.folder.empty() || !disk_has_room(lines.size())) return;
  auto& log = stream == Launcher::Stream::kOut ? entry.out : entry.err;
  if (!log) {
    auto opened = runtime::make_file_log("worker", path(worker, stream), options_.max_file_bytes);
    // Without the file, for instance on a full disk, the worker goes on.
    if (!opened) return;
    log = *opened;
    log->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::local, ""));
  }
  log->info(lines);
  Spans& s = entry.spans[index(stream)];
  const std::uint64_t from = std::exchange(s.written, s.written + lines.size());
  if (!s.now.task.caller) return;
  if (s.spans.empty() || s.spans.back().mark.task != s.now.task || s.spans.back().to != from) s.spans.push_back({s.now, from, from});
  s.spans.back().to = s.written;
  if (s.spans.size() > kMaxSpans) s.spans.pop_front();
}

void LogBook::mark(WorkerId worker, Launcher::Stream stream, TaskMark mark) {
  Spans& s = open_[worker].spans[index(stream)];
  s.marked = true;
  s.now = std::move(mark);
}

std::string_view LogBook::function(WorkerId worker, Launcher::Stream stream) const {
  const auto* spans = spans_of(worker);
  return spans == nullptr ? "" : std::string_view((*spans)[index(stream)].now.name);
}

std::string LogBook::tail(WorkerId worker) const {
  const auto it = open_.find(worker);
  if (it == open_.end()) return {};
  std::string out;
  for (const auto& line : it->second.tail) out += (out.empty() ? "" : "\n") + line;
  if (out.size() > options_.tail_bytes) out.erase(0, out.size() - options_.tail_bytes);
  return out;
}

void LogBook::close(WorkerId worker) {
  auto entry = open_.extract(worker);
  ended_.push_back({worker, bytes_of(worker), entry.empty() ? std::array<Spans, 2>() : std::move(entry.mapped().spans)});
  ended_bytes_ += ended_.back().bytes;
  while (ended_.size() > options_.max_files || (ended_bytes_ > options_.max_ended_bytes && ended_.size() > 1)) forget_oldest();
}

void LogBook::forget_oldest() {
  for (const auto stream : {Launcher::Stream::kOut, Launcher::Stream::kErr}) {
    const std::string file = path(ended_.front().worker, stream);
    std::remove(file.c_str());
    std::remove(rotated(file).c_str());
  }
  ended_bytes_ -= ended_.front().bytes;
  ended_.pop_front();
}

std::size_t LogBook::bytes_of(WorkerId worker) const {
  std::size_t out = 0;
  for (const auto stream : {Launcher::Stream::kOut, Launcher::Stream::kErr}) {
    for (const std::string& file : {path(worker, stream), rotated(path(worker, stream))}) {
      std::error_code absent;
      const auto size = std::filesystem::file_size(file, absent);
      if (!absent) out += size;
    }
  }
  return out;
}

bool LogBook::disk_has_room(std::size_t bytes) {
  since_check_ += bytes;
  if (checked_ && since_check_ < options_.check_after_bytes) return has_room_;
  checked_ = true;
  since_check_ = 0;
  std::size_t free = options_.min_free_bytes;
  if (options_.free_bytes) {
    free = options_.free_bytes(options_.folder);
  } else {
    std::error_code unknown;
    const auto space = std::filesystem::space(options_.folder, unknown);
    if (!unknown) free = space.available;
  }
  has_room_ = free >= options_.min_free_bytes;
  return has_room_;
}

Result<std::string> LogBook::read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const {
  const std::string file = path(worker, stream);
  auto out = last_bytes(file, bytes);
  if (!out) return fail(not_found("this node has no log of worker " + to_string(worker)));
  if (out->size() < bytes) out->insert(0, last_bytes(rotated(file), bytes - out->size()).value_or(""));
  return *std::move(out);
}

const std::array<LogBook::Spans, 2>* LogBook::spans_of(WorkerId worker) const {
  if (const auto it = open_.find(worker); it != open_.end()) return &it->second.spans;
  const auto ended = std::find_if(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.worker == worker; });
  return ended == ended_.end() ? nullptr : &ended->spans;
}

Result<std::string> LogBook::read(WorkerId worker, Launcher::Stream stream, std::size_t bytes, TaskRef task) const {
  const auto* both = spans_of(worker);
  if (both == nullptr) return fail(not_found("this node has no record of which calls of worker " + to_string(worker) + " printed"));
  if (!(*both)[0].marked && !(*both)[1].marked) {
    return fail(unimplemented("worker " + to_string(worker) + " does not mark its output by call").with_reason("NoMarks"));
  }
  const Spans& s = (*both)[index(stream)];
  const std::string text = read(worker, stream, bytes).value_or("");
  const std::uint64_t kept_from = s.written - std::min<std::uint64_t>(s.written, text.size());
  std::string out;
  for (const Span& span : s.spans) {
    if (span.mark.task != task || span.to <= kept_from) continue;
    const std::uint64_t from = std::max(span.from, kept_from);
    out += text.substr(from - kept_from, span.to - from);
  }
  return out;
}

void LogBook::pieces(WorkerId worker, Launcher::Stream stream, std::size_t bytes,
                     const std::function<void(std::string_view, std::string_view)>& piece) const {
  const auto kept = read(worker, stream, bytes);
  if (!kept) return;
  const std::string_view text = *kept;
  std::size_t end_of_last = 0;
  const auto up_to = [&](std::string_view function, std::size_t end) {
    if (end > end_of_last) piece(function, text.substr(end_of_last, end - end_of_last));
    end_of_last = std::max(end_of_last, end);
  };
  if (const auto* both = spans_of(worker)) {
    const Spans& s = (*both)[index(stream)];
    const std::uint64_t kept_from = s.written - std::min<std::uint64_t>(s.written, text.size());
    for (const Span& span : s.spans) {
      if (span.to <= kept_from) continue;
      up_to("", std::max(span.from, kept_from) - kept_from);
      up_to(span.mark.name, span.to - kept_from);
    }
  }
  up_to("", text.size());
}

}  // namespace shoal::scheduler
