// The machine's limit: blocking ping-pong over a unix stream socket between two processes. The cores of the two ends decide the rate, so it
// is measured as the scheduler places them, on one core, and on two. Output as calls.cc.
//
// `ping_pong echo ADDRESS CORE` listens on TCP, prints its port and answers one caller; `ping_pong tcp ADDRESS PORT CORE NAME` is that
// caller, whose figure is called NAME. CORE: -1 for any.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
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

// Pins this process to the `index`-th core of its affinity mask; false if there are too few.
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

void trips_per_second(const char* name, int fd, std::size_t message_bytes, int trips) {
  std::vector<char> bytes(message_bytes);
  std::printf("{\"name\": \"%s\", \"per_second\": [", name);
  for (int round = -1; round < 7; ++round) {  // round -1 warms up
    const auto start = Steady::now();
    for (int i = 0; i < trips; ++i) {
      transfer(send_all, fd, bytes);
      transfer(receive, fd, bytes);
    }
    const double seconds = std::chrono::duration<double>(Steady::now() - start).count();
    if (round >= 0) std::printf("%s%.1f", round > 0 ? ", " : "", trips / seconds);
  }
  std::printf("]}\n");
}

// Measures in a child process, so that the pinning to a core ends with it. `ping`, `pong`: the core of each end, -1 for any.
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
  trips_per_second(name, fd, message_bytes, trips);
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

constexpr std::size_t kSmall = 64;  // about the size of a small call

sockaddr_in address_of(const char* host, int port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host, &out.sin_addr);
  return out;
}

int echo(const char* host, int core) {
  if (core >= 0 && !pin(core)) return 1;
  const int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  sockaddr_in at = address_of(host, 0);
  socklen_t length = sizeof at;
  if (bind(listening, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listening, 1) != 0) return 1;
  getsockname(listening, reinterpret_cast<sockaddr*>(&at), &length);
  std::printf("%d\n", ntohs(at.sin_port));
  std::fflush(stdout);
  const int fd = accept(listening, nullptr, nullptr);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<char> bytes(kSmall);
  for (;;) {
    transfer(receive, fd, bytes);
    transfer(send_all, fd, bytes);
  }
}

int call(const char* host, int port, int core, const char* name) {
  if (core >= 0 && !pin(core)) return 1;
  const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  const sockaddr_in at = address_of(host, port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) return 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  trips_per_second(name, fd, kSmall, 5'000);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "echo") return echo(argv[2], std::atoi(argv[3]));
  if (argc == 6 && std::string(argv[1]) == "tcp") return call(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  int bad = in_child("ping-pong", kSmall, 5'000, -1, -1);
  bad |= in_child("ping-pong, two cores", kSmall, 5'000, 0, 1);
  bad |= in_child("ping-pong, one core", kSmall, 5'000, 0, 0);
  bad |= in_child("1 MiB ping-pong", std::size_t{1} << 20, 200, -1, -1);
  return bad;
}
