#include "runtime/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/loop/loop.h"

namespace shoal::runtime {

namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

// Searches PATH before the fork, because a forked child should do as little as possible.
Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return fail(not_found("PATH has no program '" + name + "'"));
}

// Returns an unknown status unless the process is a child of this one.
ExitStatus reap(int fd) {
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(fd), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) {
    return {.known = false};
  }
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status};
}

[[noreturn]] void child(SpawnSpec& spec, const std::string& program, pid_t parent, int report) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const auto n = write(report, &error, sizeof error);
    _exit(127);
  };
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGCHLD, SIG_DFL);  // where it is ignored, a program gets no status of its children
  for (const int number : spec.ignored) signal(number, SIG_IGN);
  setsid();
  if (spec.dies_with_parent) {
    signal(spec.death_signal, SIG_DFL);  // under nohup a child inherits that it is ignored
    prctl(PR_SET_PDEATHSIG, spec.death_signal);
    if (getppid() != parent) _exit(127);  // the parent died before prctl
  }
  if (!spec.cwd.empty() && chdir(spec.cwd.c_str()) != 0) give_up();
  // First duplicates all descriptors to numbers above the final ones (0, 1, 2, 3, ...), because one may have the final number of another.
  const int base = 3 + static_cast<int>(spec.inherited.size());
  std::vector<int> sources;
  for (const Fd* fd : {&spec.in, &spec.out, &spec.err}) sources.push_back(fd->get() < 0 ? -1 : fcntl(fd->get(), F_DUPFD_CLOEXEC, base));
  for (const Fd& fd : spec.inherited) sources.push_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, base));
  report = fcntl(report, F_DUPFD_CLOEXEC, base);
  if (sources[0] < 0) sources[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] >= 0 && dup2(sources[i], static_cast<int>(i)) < 0) give_up();
  }
  // Sets close-on-exec for descriptors that libraries opened without it: Asio's sockets, log files. (Linux before 5.11 lacks this.)
  syscall(SYS_close_range, static_cast<unsigned>(base), ~0u, CLOSE_RANGE_CLOEXEC);
  auto argv = pointers(spec.argv);
  auto env = pointers(spec.env);
  execve(program.c_str(), argv.data(), env.data());
  give_up();
  _exit(127);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

std::string ExitStatus::to_string() const {
  if (!known) return "ended";
  if (signal != 0) return "was killed by " + signal_name(signal);
  return "exited with code " + std::to_string(code);
}

Result<pid_t> spawn(SpawnSpec spec) {
  if (spec.argv.empty()) return fail(invalid_argument("the command is empty"));
  SHOAL_TRY(const std::string program, find_program(spec.argv[0]));
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
  const Fd reading(report[0]);
  Fd writing(report[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fail(from_errno(errno, "fork"));
  if (pid == 0) child(spec, program, parent, writing.get());
  writing.reset();
  int error = 0;
  ssize_t n;
  do {
    n = read(reading.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    waitpid(pid, nullptr, 0);
    return fail(from_errno(error, "cannot run " + spec.argv[0]));
  }
  return pid;
}

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

namespace {

// Fails with ESRCH if the process is gone. Other failures, such as EMFILE, are temporary.
int open_pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
constexpr auto kPidfdPause = std::chrono::milliseconds(50);

// Returns true once the descriptor is readable, false at `end`.
bool readable(int fd, std::chrono::steady_clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    const int n = poll(&p, 1, static_cast<int>(std::clamp<decltype(left)>(left, 0, 1 << 30)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

}  // namespace

std::optional<ExitStatus> wait_exit(pid_t child, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  Fd fd(open_pidfd(child));
  while (fd.get() < 0) {
    if (errno == ESRCH) return ExitStatus{.known = false};
    if (std::chrono::steady_clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kPidfdPause);
    fd = Fd(open_pidfd(child));
  }
  if (!readable(fd.get(), end)) return std::nullopt;
  return reap(fd.get());
}

Result<std::string> read_line(const Fd& pipe, std::size_t max_bytes, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::string line;
  while (line.size() < max_bytes) {
    if (!readable(pipe.get(), end)) return fail(deadline_exceeded("no line arrived in time"));
    char text[4096];
    const ssize_t n = read(pipe.get(), text, sizeof text);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(unavailable("the stream ended before a line"));
    line.append(text, static_cast<std::size_t>(n));
    if (const auto newline = line.find('\n'); newline != std::string::npos) return line.substr(0, newline);
  }
  return fail(unavailable("a line without an end"));
}

void signal_group(pid_t leader, int signal) {
  if (leader > 1) kill(-leader, signal);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void become_subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

namespace {

// The fields of /proc/PID/stat from the third one, the process's state, on; none if there is no such process.
std::istringstream fields_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : line.substr(name_end + 1));
}

}  // namespace

bool is_stopped(pid_t pid) {
  std::string state;
  fields_of(pid) >> state;
  return state == "T";  // "t" is a debugger's
}

std::uint64_t start_time(pid_t pid) {
  std::istringstream fields = fields_of(pid);
  std::string field;
  if (!(fields >> field)) return 0;
  if (field == "Z" || field == "X") return 0;    // the process has ended, and is not reaped yet
  for (int i = 1; i < 20; ++i) fields >> field;  // the 22nd field of the line
  return std::strtoull(field.c_str(), nullptr, 10);
}

bool has_ended(pid_t pid, std::uint64_t start) {
  if (const auto now = start_time(pid); now != 0) return now != start;
  // Gone, or a zombie: its first thread has ended, but another may still run. The pidfd is readable once all have ended.
  const Fd fd(open_pidfd(pid));
  if (fd.get() < 0) return errno == ESRCH;
  return readable(fd.get(), std::chrono::steady_clock::now());
}

struct ProcessWatch::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, pid_t pid, std::function<void(ExitStatus)> ended)
      : descriptor(io), again(io), pid(pid), ended(std::move(ended)) {}

  void open() {
    if (const int fd = open_pidfd(pid); fd >= 0) {
      descriptor.assign(fd);
      return wait();
    }
    // The process is gone, and was reaped elsewhere.
    if (errno == ESRCH) return asio::post(again.get_executor(), [self = shared_from_this()] { self->finish({.known = false}); });
    again.expires_after(kPidfdPause);
    again.async_wait([self = shared_from_this()](std::error_code error) {
      if (!error && self->ended) self->open();
    });
  }

  void wait() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
      if (error) return;
      // A stale event, of a closed descriptor with the same number, may arrive here.
      if (!readable(self->descriptor.native_handle(), {})) return self->wait();
      self->finish(reap(self->descriptor.native_handle()));
    });
  }

  void finish(ExitStatus status) {
    std::error_code ignored;
    descriptor.close(ignored);
    if (ended) std::exchange(ended, nullptr)(status);
  }

  asio::posix::stream_descriptor descriptor;
  asio::steady_timer again;
  const pid_t pid;
  std::function<void(ExitStatus)> ended;
};

ProcessWatch::ProcessWatch(Loop& loop, pid_t pid, std::function<void(ExitStatus)> ended)
    : impl_(std::make_shared<Impl>(loop.io(), pid, std::move(ended))) {
  impl_->open();
}

ProcessWatch::~ProcessWatch() {
  impl_->ended = nullptr;
  impl_->again.cancel();
  std::error_code ignored;
  impl_->descriptor.close(ignored);
}

}  // namespace shoal::runtime
