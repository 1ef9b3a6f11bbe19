#include "scheduler/cli/run/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "runtime/core/fd.h"
#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {

namespace {

constexpr const char* kMeetingFile = "/meeting.json";

Result<void> write_whole(const std::string& path, const std::string& text) {
  const std::string half = path + "." + std::to_string(getpid());
  {
    const Fd file(open(half.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fail(from_errno(errno, half));
    for (std::size_t at = 0; at < text.size();) {
      const auto n = write(file.get(), text.data() + at, text.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail(from_errno(errno, half));
      at += static_cast<std::size_t>(n);
    }
    if (fsync(file.get()) != 0) return fail(from_errno(errno, half));
  }
  if (rename(half.c_str(), path.c_str()) != 0) return fail(from_errno(errno, path));
  return {};
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Result<RunFolder> RunFolder::make(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  std::filesystem::create_directories(whole.parent_path(), error);
  if (mkdir(whole.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(Error(from_errno(errno, "the run's folder " + whole.string())).with_hint("name another one: --run-folder DIR"));
  }
  return RunFolder(whole);
}

Result<void> RunFolder::write_meeting(const Meeting& meeting) const {
  const nlohmann::json out = {
      {"schema", "shoal.meeting/1"}, {"address", meeting.address}, {"token", meeting.token}, {"ca_fingerprint", meeting.fingerprint}};
  return write_whole(path_ + kMeetingFile, out.dump() + "\n");
}

Result<std::optional<Meeting>> RunFolder::read_meeting() const {
  std::error_code ignored;
  // NFS remembers for a while that a file is not there. A listing of the folder makes it look again.
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) (void)entry;
  const std::string path = path_ + kMeetingFile;
  struct stat seen {};
  if (stat(path.c_str(), &seen) != 0) return std::optional<Meeting>();
  if (seen.st_uid != geteuid() || (seen.st_mode & 077) != 0) {
    return fail(
        invalid_argument(path + " is not this user's alone, so its secret is none").with_hint("name another folder: --run-folder DIR"));
  }
  const auto said = nlohmann::json::parse(read_whole(path), nullptr, false);
  if (!said.is_object()) return std::optional<Meeting>();
  const auto text = [&](const char* key) { return said.contains(key) && said[key].is_string() ? said[key].get<std::string>() : ""; };
  return std::optional(Meeting{text("address"), text("token"), text("ca_fingerprint")});
}

void RunFolder::remove_meeting() const { unlink((path_ + kMeetingFile).c_str()); }

Result<void> RunFolder::write_exit(const ExitRecord& record, std::uint32_t host) const {
  nlohmann::json out = {{"schema", "shoal.exit/1"},
                        {"exit_code", record.exit_code},
                        {"cause", record.cause.empty() ? nlohmann::json() : nlohmann::json(record.cause)},
                        {"rank", record.rank ? nlohmann::json(*record.rank) : nlohmann::json()},
                        {"retryable", record.retryable},
                        {"checkpoint", record.checkpoint.empty() ? nlohmann::json() : nlohmann::json(record.checkpoint)},
                        {"unix_s", record.unix_s}};
  return write_whole(path_ + (host == 0 ? "/exit.json" : "/exit-" + std::to_string(host) + ".json"),
                     out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string RunFolder::newest_checkpoint() const {
  auto text = read_whole(path_ + "/checkpoint");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Result<void> write_torchelastic_error(const ExitRecord& record, const std::string& file) {
  const nlohmann::json extra = {{"timestamp", std::to_string(record.unix_s)},
                                {"rank", record.rank ? nlohmann::json(*record.rank) : nlohmann::json()},
                                {"retryable", record.retryable},
                                {"checkpoint", record.checkpoint}};
  const nlohmann::json out = {{"message", {{"message", record.cause}, {"errorCode", record.exit_code}, {"extraInfo", extra}}}};
  const auto text = out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::ofstream to(file);  // no rename: a pod's /dev/termination-log is a mount of its own
  to << text;
  to.flush();
  if (!to) return fail(unavailable("cannot write " + file));
  return {};
}

}  // namespace shoal::scheduler::cli
