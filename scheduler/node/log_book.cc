#include "scheduler/node/log_book.h"

#include <spdlog/pattern_formatter.h>

#include <cstdio>
#include <fstream>

namespace shoal::scheduler {

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
      std::remove(path(ended_.front(), stream).c_str());
    }
    ended_.pop_front();
  }
}

Result<std::string> LogBook::read(WorkerId worker, Launcher::Stream stream, std::size_t bytes) const {
  std::ifstream file(path(worker, stream), std::ios::binary | std::ios::ate);
  if (!file) return fail(not_found("no log of worker " + to_string(worker)));
  const auto size = static_cast<std::size_t>(file.tellg());
  const std::size_t take = std::min(size, bytes);
  std::string out(take, 0);
  file.seekg(static_cast<std::streamoff>(size - take));
  file.read(out.data(), static_cast<std::streamsize>(take));
  return out;
}

}  // namespace shoal::scheduler
