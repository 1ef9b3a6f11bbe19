#include "scheduler/roles/head_keeper.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace shoal::scheduler {

namespace {

constexpr runtime::Duration kEarly = std::chrono::milliseconds(500), kFirstPause = std::chrono::milliseconds(50),
                            kLongestPause = std::chrono::seconds(1);

std::vector<std::string> command_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string word; std::getline(file, word, '\0');) out.push_back(word);
  return out;
}

// Adapts the head's command line for a restart: fixes the port to the one in use, and removes --ready-fd, since no process waits for the
// report.
void adapt(std::vector<std::string>& command, const std::string& endpoint) {
  const auto value_of = [&](const char* option) {
    const auto at = std::find(command.begin(), command.end(), option);
    return at == command.end() ? at : at + 1;
  };
  if (const auto fd = value_of("--ready-fd"); fd != command.end()) command.erase(fd - 1, fd + 1);
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  if (const auto at = value_of("--port"); at != command.end()) {
    *at = port;
  } else {
    command.insert(command.end(), {"--port", port});
  }
}

}  // namespace

Result<std::unique_ptr<HeadKeeper>> HeadKeeper::make(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log,
                                                     actors::SessionFolder folder) {
  SHOAL_TRY(const auto info, folder.info());
  std::unique_ptr<HeadKeeper> keeper(new HeadKeeper(loop, clock, std::move(log), std::move(folder)));
  for (const auto& p : keeper->folder_.processes()) {
    if (p.role != "head") continue;
    keeper->command_ = command_of(p.pid);
    if (keeper->command_.empty()) continue;
    std::error_code error;
    keeper->command_[0] = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return fail(internal("the path of this program cannot be read: " + error.message()));
    adapt(keeper->command_, info.head);
    keeper->watch(p.pid);
    return keeper;
  }
  return fail(unavailable("this session has no head on this host"));
}

void HeadKeeper::watch(pid_t pid) {
  pid_ = pid;
  started_ = clock_.now();
  watch_ = std::make_unique<runtime::ProcessWatch>(loop_, pid, [this](const runtime::ExitStatus& status) { ended(status); });
}

void HeadKeeper::ended(const runtime::ExitStatus& status) {
  const auto over = std::move(watch_);
  if (stopped_) return;
  // A head that ends in order removes itself from the session's list of processes.
  if (status.known ? status.ok() : !folder_.entered("head", pid_)) return log_->info("head pid={} ended in order", pid_);
  folder_.leave("head", pid_);
  early_ends_ = clock_.now() - started_ < kEarly ? early_ends_ + 1 : 0;
  const runtime::Duration pause = early_ends_ < 2
                                      ? runtime::Duration::zero()
                                      : std::min<runtime::Duration>(kFirstPause * (1 << std::min(early_ends_ - 2, 10)), kLongestPause);
  log_->warn("head pid={} {}: it is started again", pid_, status.to_string());
  starting_ = clock_.after(pause, [this] { start(); });
}

void HeadKeeper::start() {
  if (stopped_) return;
  runtime::SpawnSpec spec;
  spec.argv = command_;
  for (char** e = environ; *e != nullptr; ++e) spec.env.emplace_back(*e);
  spec.cwd = "/";
  spec.out = Fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.err = Fd(open((folder_.logs() + "/head.stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (runtime::is_ignored(SIGTERM)) spec.ignored = {SIGTERM};
  spec.dies_with_parent = false;  // nodes on other hosts may need the head longer than this node lives
  if (const auto pid = runtime::spawn(std::move(spec))) {
    log_->info("head pid={} started", *pid);
    return watch(*pid);
  } else {
    log_->warn("head not started: {}", pid.error().message());
  }
  starting_ = clock_.after(kLongestPause, [this] { start(); });
}

}  // namespace shoal::scheduler
