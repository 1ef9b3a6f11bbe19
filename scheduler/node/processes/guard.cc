#include "scheduler/node/processes/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>

namespace shoal::scheduler {

namespace {

[[noreturn]] void stand_guard(int pipe) {
  // A session of its own: signals of the terminal, or to the node's process group, do not reach the guard.
  setsid();
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(ignored, SIG_IGN);
  prctl(PR_SET_NAME, "shoal-guard");
  // The pipe's descriptor in this process. All others, which are connections and logs of the node, are closed.
  constexpr int kPipe = 0;
  dup2(pipe, kPipe);
  syscall(SYS_close_range, 1u, ~0u, 0u);
  std::set<pid_t> groups;
  pid_t word = 0;
  while (true) {
    const ssize_t n = read(kPipe, &word, sizeof word);  // the node writes each word atomically
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof word) break;
    if (word > 0) {
      groups.insert(word);
    } else {
      groups.erase(-word);
    }
  }
  for (const pid_t leader : groups) {
    if (leader > 1) kill(-leader, SIGKILL);
  }
  _exit(0);
}

}  // namespace

Result<std::unique_ptr<Guard>> Guard::start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return fail(from_errno(errno, "fork"));
  if (pid == 0) stand_guard(reading.get());
  return std::unique_ptr<Guard>(new Guard(pid, std::move(writing)));
}

Guard::~Guard() {
  pipe_.reset();
  waitpid(pid_, nullptr, 0);
}

void Guard::send(pid_t word) {
  while (write(pipe_.get(), &word, sizeof word) < 0 && errno == EINTR) {
  }  // no error, since a node works without its guard as well
}

}  // namespace shoal::scheduler
