#include "scheduler/node/log_book.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include <cstdio>
#include <fstream>
#include <optional>

namespace shoal::scheduler {

namespace {

// What a file of spdlog's is called after it was full.
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
  if (options_.folder.empty()) return;
  auto& log = stream == Launcher::Stream::kOut ? entry.out : entry.err;
  if (!log) {
    auto made = runtime::make_file_log("worker", path(worker, stream), options_.max_file_bytes);
    if (!made) return;  // a full disk costs the file, not the worker
    log = *made;
    log->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::local, ""));
  }
  log->info(lines);
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
  open_.erase(worker);
  ended_.push_back(worker);
  while (ended_.size() > options_.max_files) {
    for (const auto stream : {Launcher::Stream::kOut, Launcher::Stream::kErr}) {
      const std::string file = path(ended_.front(), stream);
      std::remove(file.c_str());
      std::remove(rotated(file).c_str());
    }
    ended_.pop_front();
  }
}

Result<std::string> LogBook::read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const {
  const std::string file = path(worker, stream);
  auto out = last_bytes(file, bytes);
  if (!out) return fail(not_found("no log of worker " + to_string(worker)));
  if (out->size() < bytes) out->insert(0, last_bytes(rotated(file), bytes - out->size()).value_or(""));
  return *std::move(out);
}

}  // namespace shoal::scheduler
