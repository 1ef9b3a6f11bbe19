// What the machine allows: blocking ping-pong over a unix stream socket between two processes, nothing else. Where the two ends run decides
// the rate, so it is measured as the scheduler places them, on one core, and on two. Output as calls.cc.
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Steady = std::chrono::steady_clock;

void transfer(ssize_t (*move)(int, char*, std::size_t), int fd, std::vector<char>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = move(fd, bytes.data() + done, bytes.size() - done);
    if (n <= 0) std::_Exit(n == 0 ? 0 : 1);  // the peer is gone
    done += static_cast<std::size_t>(n);
  }
}
ssize_t receive(int fd, char* to, std::size_t bytes) { return read(fd, to, bytes); }
ssize_t send_all(int fd, char* from, std::size_t bytes) { return write(fd, from, bytes); }

// This process on the `index`-th core it may use; false where there are too few.
bool pin(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

// Runs in a child, so that pinning ends with it. ping, pong: core of each end, -1 for any.
int measure(const char* name, std::size_t message_bytes, int trips, int ping, int pong) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  std::vector<char> bytes(message_bytes);
  const pid_t echo = fork();
  if (echo < 0) return 1;
  close(ends[echo == 0 ? 0 : 1]);
  const int fd = ends[echo == 0 ? 1 : 0];
  const int core = echo == 0 ? pong : ping;
  if (core >= 0 && !pin(core)) return 1;
  if (echo == 0) {
    for (;;) {
      transfer(receive, fd, bytes);
      transfer(send_all, fd, bytes);
    }
  }
  std::printf("{\"name\": \"%s\", \"per_second\": [", name);
  for (int round = -1; round < 7; ++round) {  // the first warms up
    const auto start = Steady::now();
    for (int i = 0; i < trips; ++i) {
      transfer(send_all, fd, bytes);
      transfer(receive, fd, bytes);
    }
    const double seconds = std::chrono::duration<double>(Steady::now() - start).count();
    if (round >= 0) std::printf("%s%.1f", round > 0 ? ", " : "", trips / seconds);
  }
  std::printf("]}\n");
  close(fd);
  return waitpid(echo, nullptr, 0) == echo ? 0 : 1;
}

int in_child(const char* name, std::size_t message_bytes, int trips, int ping, int pong) {
  const pid_t child = fork();
  if (child == 0) {
    const int code = measure(name, message_bytes, trips, ping, pong);
    std::fflush(stdout);
    std::_Exit(code);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace

int main() {
  constexpr std::size_t kSmall = 64;  // about what a small call takes
  int bad = in_child("ping-pong", kSmall, 5'000, -1, -1);
  bad |= in_child("ping-pong, two cores", kSmall, 5'000, 0, 1);
  bad |= in_child("ping-pong, one core", kSmall, 5'000, 0, 0);
  bad |= in_child("1 MiB ping-pong", std::size_t{1} << 20, 200, -1, -1);
  return bad;
}
