#include "scheduler/node/logs/log_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "runtime/core/fd.h"

namespace shoal::scheduler {

namespace fs = std::filesystem;

std::vector<std::string> log_files(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end && out.size() < kMaxLogFiles; it.increment(ignored)) {
    const std::string name = it->path().filename();
    if (!it->is_symlink(ignored) && it->is_regular_file(ignored) && name.find('\n') == std::string::npos) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void forget_role_logs(const std::string& folder, const std::string& role, const std::set<pid_t>& living, std::size_t keep) {
  std::vector<std::pair<fs::file_time_type, fs::path>> left;
  std::error_code ignored;
  for (const std::string& name : log_files(folder)) {
    if (!name.starts_with(role + "-") || !name.ends_with(".log")) continue;
    const auto pid = static_cast<pid_t>(std::strtol(name.c_str() + role.size() + 1, nullptr, 10));
    if (pid > 0 && !living.contains(pid)) left.emplace_back(fs::last_write_time(folder + "/" + name, ignored), folder + "/" + name);
  }
  std::sort(left.begin(), left.end());
  for (std::size_t i = 0; i + keep < left.size(); ++i) fs::remove(left[i].second, ignored);
}

Result<std::string> read_log_file(const std::string& folder, const std::string& name, std::size_t bytes) {
  if (folder.empty() || name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return fail(invalid_argument("'" + name + "' is not a log file's name"));
  }
  const Fd file(open((folder + "/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return fail(not_found("this node has no log file " + name));
  const auto size = static_cast<std::size_t>(info.st_size);
  std::string out(std::min(bytes, size), '\0');
  std::size_t got = 0;
  while (got < out.size()) {
    const auto n = pread(file.get(), out.data() + got, out.size() - got, static_cast<off_t>(size - out.size() + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(from_errno(errno, name));
    if (n == 0) break;  // the file was truncated meanwhile
    got += static_cast<std::size_t>(n);
  }
  out.resize(got);
  return out;
}

}  // namespace shoal::scheduler
