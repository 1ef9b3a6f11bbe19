#include "scheduler/cli/run/run_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/loop/random.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/run/forwarding/sender.h"

namespace shoal::scheduler::cli {

namespace {

constexpr const char* kMeetingFile = "meeting.json";
constexpr const char* kCheckpointFile = "checkpoint";
constexpr const char* kProcesses = "processes";
constexpr std::size_t kMostBytes = 1 << 20;

std::string exit_file(std::uint32_t host) { return host == 0 ? "exit.json" : "exit-" + std::to_string(host) + ".json"; }

Result<void> write_all(const Fd& file, const std::string& text, const std::string& name) {
  for (std::size_t at = 0; at < text.size();) {
    const auto n = write(file.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(from_errno(errno, name));
    at += static_cast<std::size_t>(n);
  }
  if (fsync(file.get()) != 0) return fail(from_errno(errno, name));
  return {};
}

std::string read_all(const Fd& file) {
  std::string out;
  char part[4096];
  while (out.size() < kMostBytes) {
    const auto n = read(file.get(), part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(part, static_cast<std::size_t>(n));
  }
  return out;
}

// NFS remembers for a while that a file is not there. A listing of the folder makes it look again.
std::vector<std::string> names_in(const Fd& folder) {
  const int again = openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const all = again < 0 ? nullptr : fdopendir(again);
  std::vector<std::string> out;
  if (all == nullptr) return out;
  while (const dirent* const entry = readdir(all)) out.emplace_back(entry->d_name);
  closedir(all);
  return out;
}

std::pair<std::uint64_t, std::int64_t> id_of(const struct stat& file) {
  return {file.st_ino, file.st_mtim.tv_sec * std::int64_t{1'000'000'000} + file.st_mtim.tv_nsec};
}

}  // namespace

Result<RunFolder> RunFolder::make(const std::string& path) {
  const char* const hint = "name another one: --run-folder DIR";
  std::error_code error;
  auto whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // a slash at the end would follow a link
  std::filesystem::create_directories(whole.parent_path(), error);
  const std::string name = "the run's folder " + whole.string();
  if (mkdir(whole.c_str(), 0700) != 0 && errno != EEXIST) return fail(Error(from_errno(errno, name)).with_hint(hint));
  Fd folder(open(whole.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return fail(Error(from_errno(errno, name)).with_hint(hint));
  struct stat seen {};
  if (fstat(folder.get(), &seen) != 0) return fail(from_errno(errno, name));
  if (seen.st_uid != geteuid() || (seen.st_mode & 022) != 0)
    return fail(invalid_argument(name + " belongs to another user, or others can write to it").with_hint(hint));
  RunFolder out(whole, std::move(folder));
  out.earlier_exits_ = out.exits();
  return out;
}

Result<void> RunFolder::write_whole(const std::string& name, const std::string& text) const {
  // Hosts that share the folder may have the same process numbers.
  const auto random = runtime::make_real_random();
  const std::string half = fmt::format(".{}.{:016x}", name, random->next());
  const std::string where = path_ + "/" + name;
  {
    const Fd file(openat(folder_.get(), half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return fail(from_errno(errno, where));
    if (const auto written = write_all(file, text, where); !written) {
      unlinkat(folder_.get(), half.c_str(), 0);
      return fail(written.error());
    }
  }
  if (renameat(folder_.get(), half.c_str(), folder_.get(), name.c_str()) == 0) return {};
  const auto why = from_errno(errno, where);
  unlinkat(folder_.get(), half.c_str(), 0);
  return fail(why);
}

Fd RunFolder::open_file(const char* name) const { return Fd(openat(folder_.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)); }

std::set<RunFolder::FileId> RunFolder::exits() const {
  std::set<FileId> out;
  for (const auto& name : names_in(folder_)) {
    struct stat seen {};
    if (name.starts_with("exit") && fstatat(folder_.get(), name.c_str(), &seen, AT_SYMLINK_NOFOLLOW) == 0) out.insert(id_of(seen));
  }
  return out;
}

void RunFolder::leave_out_recorded_run(std::uint32_t host) {
  const auto said = nlohmann::json::parse(read_all(open_file(exit_file(host).c_str())), nullptr, false);
  if (said.is_object() && said.contains("run") && said["run"].is_string()) leave_out(said["run"]);
}

void RunFolder::forget_earlier_run(std::uint32_t host) {
  leave_out_recorded_run(host);
  unlinkat(folder_.get(), exit_file(host).c_str(), 0);
  if (host == 0) unlinkat(folder_.get(), kCheckpointFile, 0);
}

Result<std::string> RunFolder::set_earlier_run_aside() {
  leave_out_recorded_run(0);
  struct stat seen {};
  if (fstatat(folder_.get(), kProcesses, &seen, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(seen.st_mode)) return "";
  std::string path;
  for (int n = 1; path.empty() || mkdir(path.c_str(), 0700) != 0; ++n) {
    if (!path.empty() && errno != EEXIST) return fail(from_errno(errno, path));
    path = fmt::format("{}-{}", path_, n);
  }
  const Fd aside(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!aside) return fail(from_errno(errno, path));
  for (const auto& name : {std::string(kProcesses), exit_file(0), std::string(kCheckpointFile)}) {
    if (renameat(folder_.get(), name.c_str(), aside.get(), name.c_str()) != 0 && errno != ENOENT) return fail(from_errno(errno, path));
  }
  return path;
}

Result<void> RunFolder::write_meeting(const Meeting& meeting) {
  run_ = fmt::format("{:016x}", runtime::make_real_random()->next());
  const nlohmann::json out = {{"schema", "shoal.meeting/1"},
                              {"run", run_},
                              {"address", meeting.address},
                              {"token", meeting.token},
                              {"ca_fingerprint", meeting.fingerprint}};
  return write_whole(kMeetingFile, out.dump() + "\n");
}

Result<std::optional<Meeting>> RunFolder::read_meeting() const {
  (void)names_in(folder_);
  const Fd file = open_file(kMeetingFile);
  if (!file && errno != ELOOP) return std::optional<Meeting>();
  struct stat seen {};
  if (!file || fstat(file.get(), &seen) != 0 || !S_ISREG(seen.st_mode) || seen.st_uid != geteuid() || (seen.st_mode & 077) != 0) {
    return fail(invalid_argument(path_ + "/" + kMeetingFile + " is not this user's alone, so its secret is none")
                    .with_hint("name another folder: --run-folder DIR"));
  }
  const auto said = nlohmann::json::parse(read_all(file), nullptr, false);
  if (!said.is_object()) return std::optional<Meeting>();
  const auto text = [&](const char* key) { return said.contains(key) && said[key].is_string() ? said[key].get<std::string>() : ""; };
  return std::optional(Meeting{text("address"), text("token"), text("ca_fingerprint"), text("run")});
}

void RunFolder::remove_meeting() const {
  if (run_.empty()) return;
  const auto said = nlohmann::json::parse(read_all(open_file(kMeetingFile)), nullptr, false);
  if (said.is_object() && said.contains("run") && said["run"] == run_) unlinkat(folder_.get(), kMeetingFile, 0);
}

Result<std::string> RunFolder::write_mark() const {
  const auto mark = fmt::format("{:016x}", runtime::make_real_random()->next());
  SHOAL_OK(write_whole(kMarkFile, mark + "\n"));
  return mark;
}

Result<void> RunFolder::write_exit(const ExitRecord& record, std::uint32_t host) const {
  nlohmann::json out = {{"schema", "shoal.exit/1"},
                        {"exit_code", record.exit_code},
                        {"cause", record.cause.empty() ? nlohmann::json() : nlohmann::json(record.cause)},
                        {"rank", record.rank ? nlohmann::json(*record.rank) : nlohmann::json()},
                        {"retryable", record.retryable},
                        {"checkpoint", record.checkpoint.empty() ? nlohmann::json() : nlohmann::json(record.checkpoint)},
                        {"unix_s", record.unix_s}};
  if (const auto& run = record.run.empty() ? run_ : record.run; !run.empty()) out["run"] = run;
  return write_whole(exit_file(host), out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::optional<ExitRecord> RunFolder::read_exit(std::uint32_t host) const {
  (void)names_in(folder_);
  const Fd file = open_file(exit_file(host).c_str());
  struct stat seen {};
  if (!file || fstat(file.get(), &seen) != 0 || earlier_exits_.contains(id_of(seen))) return {};
  const auto said = nlohmann::json::parse(read_all(file), nullptr, false);
  if (!said.is_object()) return {};
  const auto is = [&](const char* key, auto kind) { return said.contains(key) && (said[key].*kind)(); };
  using Json = nlohmann::json;
  ExitRecord out;
  if (is("exit_code", &Json::is_number_integer)) out.exit_code = said["exit_code"];
  if (is("cause", &Json::is_string)) out.cause = said["cause"];
  if (is("retryable", &Json::is_boolean)) out.retryable = said["retryable"];
  if (is("unix_s", &Json::is_number_integer)) out.unix_s = said["unix_s"];
  if (is("run", &Json::is_string)) out.run = said["run"];
  if (left_out_.contains(out.run)) return {};
  return out;
}

std::string RunFolder::newest_checkpoint() const {
  auto text = read_all(open_file(kCheckpointFile));
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
