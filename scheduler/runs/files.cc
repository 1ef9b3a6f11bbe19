#include "scheduler/runs/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace shoal::scheduler::runs {

namespace {

constexpr std::size_t kPart = 256 << 10;  // bytes of a file that are read at once
constexpr int kMostLevels = 16;

// The offset of the last `most` complete lines of a file. Lowers `most` by their number.
std::uint64_t begin_of_last(const Fd& file, std::uint64_t size, std::size_t& most) {
  std::string part(kPart, '\0');
  for (std::uint64_t end = size; end > 0;) {
    const auto length = std::min<std::uint64_t>(end, part.size()), begin = end - length;
    if (pread(file.get(), part.data(), length, static_cast<off_t>(begin)) != static_cast<ssize_t>(length)) return 0;
    for (std::size_t i = length; i-- > 0;) {
      if (part[i] != '\n') continue;
      if (most == 0) return begin + i + 1;
      --most;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

Fd open_folder(const Fd& folder, const char* name) {
  return Fd(openat(folder.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

Fd open_file(const Fd& folder, const char* name) {
  Fd file(openat(folder.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat seen {};
  if (!file || fstat(file.get(), &seen) != 0 || !S_ISREG(seen.st_mode)) return Fd();
  return file;
}

std::optional<std::string> read_file(const Fd& folder, const char* name, std::size_t most) {
  const Fd file = open_file(folder, name);
  if (!file) return {};
  std::string out;
  char part[4096];
  while (out.size() <= most) {
    const auto n = read(file.get(), part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return {};
    if (n == 0) return out;
    out.append(part, static_cast<std::size_t>(n));
  }
  return {};
}

std::vector<std::string> names_in(const Fd& folder, std::size_t most, std::size_t* left_out) {
  std::vector<std::string> out;
  std::size_t more = 0;
  const int again = openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // opened once more, for a position of its own
  DIR* const all = again < 0 ? nullptr : fdopendir(again);
  if (all == nullptr && again >= 0) close(again);
  while (const dirent* const entry = all == nullptr ? nullptr : readdir(all)) {
    if (entry->d_name[0] == '.') continue;
    if (out.size() < most) {
      out.emplace_back(entry->d_name);
    } else if (++more > 1'000'000) {
      break;
    }
  }
  if (all != nullptr) closedir(all);
  std::sort(out.begin(), out.end());
  if (left_out != nullptr) *left_out = more;
  return out;
}

std::optional<LevelFile> level_file(const std::string& name) {
  constexpr std::string_view kEnd = ".jsonl";
  const auto dot = name.find('.'), dash = name.find('-', dot == std::string::npos ? 0 : dot);
  if (dot == std::string::npos || dash == std::string::npos || !name.ends_with(kEnd)) return {};
  LevelFile out{name, name.substr(0, dot)};
  const char* const begin = name.data();
  const char* const end = begin + name.size() - kEnd.size();
  const auto level = std::from_chars(begin + dot + 1, end, out.level);
  if (level.ec != std::errc() || level.ptr != begin + dash || out.level < 0 || out.level >= kMostLevels) return {};
  const auto number = std::from_chars(begin + dash + 1, end, out.number);
  if (number.ec != std::errc() || number.ptr != end) return {};
  return out;
}

LevelFiles::Outcome LevelFiles::read(const Fd& folder, const std::vector<LevelFile>& listed, const OnLine& on_line) {
  std::vector<LevelFile> files;
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(files), [&](const LevelFile& f) { return f.kind == kind_; });
  std::sort(files.begin(), files.end(),
            [](const LevelFile& a, const LevelFile& b) { return std::make_pair(-a.level, a.number) < std::make_pair(-b.level, b.number); });
  if (!begun_ && limits_.newest_lines > 0 && limits_.tail_bytes == 0) skip_to_newest(folder, files);
  bool gap = begun_ && merges_ && has_gap(files);
  const std::uint64_t newest = cursors_.empty() ? 0 : cursors_.rbegin()->first.second;
  for (const auto& file : files) {
    if (gap) break;
    // After the first reading, only the newest file of level 0 grows, and coarser levels only repeat rows of level 0.
    if (begun_ && (file.level > 0 || file.number < newest)) continue;
    if (!begun_ && limits_.tail_bytes > 0 && &file != &files.back()) continue;
    if (!read_file(folder, file, on_line)) gap = merges_;
  }
  if (gap) {
    cursors_.clear();
    begun_ = false;
    return Outcome::kAgain;
  }
  begun_ = begun_ || !files.empty();
  // Only the newest file of level 0 is followed.
  std::erase_if(cursors_, [last = cursors_.empty() ? 0 : cursors_.rbegin()->first.second](const auto& c) {
    return c.first.first < 0 || c.first.second < last;
  });
  return Outcome::kRead;
}

// True if a file of level 0 may have gone before its end was read.
bool LevelFiles::has_gap(const std::vector<LevelFile>& files) const {
  if (cursors_.empty()) return false;
  const std::uint64_t newest = cursors_.rbegin()->first.second;
  bool any_newer = false, still_there = false;
  for (const auto& file : files) {
    if (file.level != 0) continue;
    any_newer = any_newer || file.number > newest;
    still_there = still_there || file.number == newest;
  }
  return any_newer && !still_there;
}

void LevelFiles::skip_to_newest(const Fd& folder, const std::vector<LevelFile>& files) {
  std::size_t most = limits_.newest_lines;
  for (auto named = files.rbegin(); named != files.rend(); ++named) {
    const Fd file = open_file(folder, named->name.c_str());
    struct stat seen {};
    if (!file || fstat(file.get(), &seen) != 0) continue;
    const auto size = std::min<std::uint64_t>(static_cast<std::uint64_t>(seen.st_size), limits_.file_bytes);
    cursors_[{-named->level, named->number}].offset = begin_of_last(file, size, most);
  }
}

bool LevelFiles::read_file(const Fd& folder, const LevelFile& named, const OnLine& on_line) {
  const Fd file = open_file(folder, named.name.c_str());
  if (!file) return errno != ENOENT;
  struct stat seen {};
  // Level 0 sorts last, so that rbegin() of the cursors is its newest file.
  auto& cursor = cursors_[{-named.level, named.number}];
  if (fstat(file.get(), &seen) != 0 || static_cast<std::uint64_t>(seen.st_size) <= cursor.offset) return true;
  const auto size = std::min<std::uint64_t>(static_cast<std::uint64_t>(seen.st_size), limits_.file_bytes);
  if (!begun_ && limits_.tail_bytes > 0 && size > limits_.tail_bytes) {
    cursor.offset = size - limits_.tail_bytes;
    cursor.in_long_line = true;  // reading begins within a line
  }
  read_lines(file, cursor, named.level, on_line);
  return true;
}

void LevelFiles::read_lines(const Fd& file, Cursor& cursor, int level, const OnLine& on_line) {
  std::string held;  // bytes of the file from cursor.offset on
  std::string part(kPart, '\0');
  for (std::uint64_t at = cursor.offset; at < limits_.file_bytes;) {
    const auto n = pread(file.get(), part.data(), part.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<std::uint64_t>(n);
    held.append(part.data(), static_cast<std::size_t>(n));
    std::size_t from = 0;
    for (std::size_t end; (end = held.find('\n', from)) != std::string::npos; from = end + 1) {
      if (cursor.in_long_line || end - from > limits_.line_bytes) {
        on_line(level, std::nullopt);
      } else if (end > from) {
        on_line(level, std::string_view(held).substr(from, end - from));
      }
      cursor.in_long_line = false;
    }
    held.erase(0, from);
    cursor.offset += from;
    if (held.size() > limits_.line_bytes) {
      cursor.in_long_line = true;
      cursor.offset += held.size();
      held.clear();
    }
  }
}

}  // namespace shoal::scheduler::runs
