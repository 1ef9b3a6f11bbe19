#include "runtime/process/captured.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace shoal::runtime {

namespace {

constexpr auto kKillPatience = std::chrono::seconds(10);
constexpr std::size_t kDrainBytes = 1 << 20;  // bytes read from a pipe at once: as many as a pipe can have

struct Pipe {
  Fd reads, writes;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
  Pipe out{Fd(ends[0]), Fd(ends[1])};
  if (fcntl(out.reads.get(), F_SETFL, O_NONBLOCK) != 0) return fail(from_errno(errno, "pipe"));
  return out;
}

// Appends what lies in the pipe, and closes it at its end.
void drain(Fd& from, std::string& text) {
  char piece[16 << 10];
  for (std::size_t taken = 0; from && taken < kDrainBytes;) {
    const ssize_t n = read(from.get(), piece, sizeof piece);
    if (n > 0) {
      text.append(piece, static_cast<std::size_t>(n));
      taken += static_cast<std::size_t>(n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      from.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

}  // namespace

Result<Captured> run_captured(SpawnSpec spec, const CaptureLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limits.time;
  const std::string name = spec.argv.empty() ? "" : spec.argv[0];
  SHOAL_TRY(Pipe out, make_pipe());
  SHOAL_TRY(Pipe err, make_pipe());
  spec.out = std::move(out.writes);
  spec.err = std::move(err.writes);
  SHOAL_TRY(const pid_t pid, spawn(std::move(spec)));
  // Without a pidfd, the program counts as ended once both streams have ended.
  const Fd ended(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const auto kill_it = [&](Error why) -> Result<Captured> {
    signal_group(pid, SIGKILL);
    (void)wait_exit(pid, kKillPatience);
    return fail(std::move(why));
  };
  Captured captured;
  for (bool over = false; !over && (out.reads || err.reads);) {
    pollfd polled[] = {{out.reads.get(), POLLIN, 0}, {err.reads.get(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int n = poll(polled, 3, static_cast<int>(std::clamp<decltype(left)>(left, 0, 1 << 30)));
    if (n < 0 && errno != EINTR) return kill_it(from_errno(errno, "poll"));
    if (Clock::now() >= end) return kill_it(deadline_exceeded(name + " did not end in time"));
    if (n < 0) continue;
    over = polled[2].revents != 0;  // by now the pipes have all that the program wrote
    drain(out.reads, captured.out);
    drain(err.reads, captured.err);
    if (captured.out.size() > limits.out_bytes)
      return kill_it(resource_exhausted(name + " wrote more than " + std::to_string(limits.out_bytes) + " bytes"));
    if (captured.err.size() > limits.err_bytes) captured.err.erase(0, captured.err.size() - limits.err_bytes);
  }
  const auto status = wait_exit(pid, std::max<std::chrono::nanoseconds>(end - Clock::now(), std::chrono::nanoseconds(0)));
  if (!status) return kill_it(deadline_exceeded(name + " did not end in time"));
  captured.ended = *status;
  return captured;
}

}  // namespace shoal::runtime
