#include "scheduler/node/processes/guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

// A process that leads a group, and its child in that group; both wait for ever. The child holds one end of a pipe, which closes with it.
struct Group {
  pid_t leader = 0;
  int open_while_alive = -1;

  static Group start() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      close(ends[0]);
      if (fork() == 0) {
        [[maybe_unused]] const auto n = write(ends[1], "x", 1);
        while (true) pause();
      }
      close(ends[1]);
      while (true) pause();
    }
    close(ends[1]);
    char c = 0;
    EXPECT_EQ(read(ends[0], &c, 1), 1);
    return {pid, ends[0]};
  }
  // Blocks until the child has ended.
  void expect_gone() const {
    char c = 0;
    EXPECT_EQ(read(open_while_alive, &c, 1), 0);
    close(open_while_alive);
    int status = 0;
    waitpid(leader, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
};

TEST(Guard, EndsTheGroupsOfANodeThatIsKilled) {
  const Group watched = Group::start(), forgotten = Group::start();
  const pid_t node = fork();
  if (node == 0) {
    const auto guard = Guard::start().value();
    guard->watch(watched.leader);
    guard->watch(forgotten.leader);
    guard->forget(forgotten.leader);
    raise(SIGKILL);
  }
  waitpid(node, nullptr, 0);
  watched.expect_gone();
  EXPECT_EQ(kill(forgotten.leader, 0), 0);
  kill(-forgotten.leader, SIGKILL);
  forgotten.expect_gone();
}

TEST(Guard, EndsInOrderWithItsNodeAndItsOwnDeathIsHarmless) {
  std::signal(SIGPIPE, SIG_IGN);
  pid_t pid = 0;
  {
    const auto guard = Guard::start().value();
    pid = guard->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
  const auto guard = Guard::start().value();
  kill(guard->pid(), SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(guard->pid()), &info, WEXITED | WNOWAIT), 0);
  guard->watch(12345);
}

}  // namespace
}  // namespace shoal::scheduler
