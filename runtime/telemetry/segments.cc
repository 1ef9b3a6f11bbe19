#include "runtime/telemetry/segments.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

std::string read_all(const Fd& file, std::size_t limit) {
  std::string out(limit, '\0');
  std::size_t size = 0;
  while (size < limit) {
    const auto got = read(file.get(), out.data() + size, limit - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  out.resize(size);
  return out;
}

}  // namespace

Segments::Segments(const Fd& folder, std::string name, Limits limits, Merge merge)
    : folder_(folder), name_(std::move(name)), limits_(limits), merge_(std::move(merge)), levels_(1) {}

std::string Segments::file_name(std::size_t level, std::uint64_t number) const {
  return fmt::format("{}.{}-{}.jsonl", name_, level, number);
}

std::size_t Segments::bytes() const {
  std::size_t out = 0;
  for (const auto& level : levels_)
    for (const auto& segment : level.segments) out += segment.bytes;
  return out;
}

Result<void> Segments::append(std::size_t level, std::string_view lines) {
  if (lines.empty()) return {};
  if (!levels_[level].file || levels_[level].segments.back().bytes >= limits_.bytes) SHOAL_OK(begin_segment(level));
  auto& segment = levels_[level].segments.back();
  const int file = levels_[level].file.get();
  std::size_t written = 0;
  while (written < lines.size()) {
    const auto got = write(file, lines.data() + written, lines.size() - written);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int why = got == 0 ? ENOSPC : errno;
      (void)!ftruncate(file, static_cast<off_t>(segment.bytes));  // a part of a line would spoil the next one
      return fail(from_errno(why, file_name(level, segment.number)));
    }
    written += static_cast<std::size_t>(got);
  }
  segment.bytes += lines.size();
  return {};
}

Result<void> Segments::begin_segment(std::size_t level) {
  auto& all = levels_[level].segments;
  if (all.size() >= limits_.kept) SHOAL_OK(drop_oldest(level));
  // Found again, because drop_oldest() may have added a level to levels_, which moves them.
  auto& segments = levels_[level].segments;
  const std::uint64_t number = segments.empty() ? 0 : segments.back().number + 1;
  Fd file(openat(folder_.get(), file_name(level, number).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return fail(from_errno(errno, file_name(level, number)));
  segments.push_back({number, 0});
  levels_[level].file = std::move(file);
  return {};
}

Result<void> Segments::drop_oldest(std::size_t level) {
  const auto name = file_name(level, levels_[level].segments.front().number);
  if (merge_ && static_cast<int>(level) + 1 < limits_.levels) {
    const Fd file(openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (levels_.size() == level + 1) levels_.emplace_back();
    // A segment that somebody has removed has no lines any more.
    if (file) SHOAL_OK(append(level + 1, merged(read_all(file, levels_[level].segments.front().bytes))));
  }
  unlinkat(folder_.get(), name.c_str(), 0);
  auto& segments = levels_[level].segments;
  segments.erase(segments.begin());
  return {};
}

std::string Segments::merged(std::string_view lines) const {
  std::string out;
  std::vector<std::string_view> some;
  const auto merge = [&] {
    if (some.empty()) return;
    if (auto line = merge_(some); !line.empty()) out += line + '\n';
    some.clear();
  };
  while (!lines.empty()) {
    const auto end = lines.find('\n');
    some.push_back(lines.substr(0, end));
    if (some.size() == kMerged) merge();
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
  }
  merge();
  return out;
}

}  // namespace shoal::runtime
