#include "runtime/process/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

class ProcessTest : public testing::Test {
 protected:
  ExitStatus wait_for(pid_t pid) {
    std::optional<ExitStatus> status;
    const ProcessWatch watch(loop_, pid, [&](ExitStatus s) { status = s; });
    const auto end = clock_->now() + 10s;
    while (!status && clock_->now() < end) loop_.run_one(20ms);
    return status.value_or(ExitStatus{.known = false, .code = -1});
  }
  static SpawnSpec shell(const std::string& script) {
    SpawnSpec spec;
    spec.argv = {"sh", "-c", script};
    spec.env = {"PATH=/usr/bin:/bin"};
    return spec;
  }
  Loop loop_;
  std::unique_ptr<Clock> clock_ = make_real_clock(loop_);
};

TEST_F(ProcessTest, ExitCodesAndSignalsComeFromTheKernel) {
  EXPECT_EQ(wait_for(spawn(shell("exit 3")).value()).to_string(), "exited with code 3");
  const auto killed = wait_for(spawn(shell("kill -9 $$")).value());
  EXPECT_EQ(killed.to_string(), "was killed by SIGKILL");
  EXPECT_EQ(killed.shell_code(), 137);
}

TEST_F(ProcessTest, AProgramHasNoDescriptorButThoseItIsGiven) {
  int careless[2];  // without O_CLOEXEC, as in some libraries
  ASSERT_EQ(pipe(careless), 0);
  const Fd reading(careless[0]);
  Fd writing(careless[1]);
  const pid_t pid = spawn(shell("exec sleep 100")).value();
  writing.reset();
  char none;
  fcntl(reading.get(), F_SETFL, O_NONBLOCK);
  EXPECT_EQ(read(reading.get(), &none, 1), 0);  // end of file: no other process holds the other end
  signal_group(pid, SIGKILL);
  wait_for(pid);
}

TEST_F(ProcessTest, WithoutALoopAnEndIsWaitedFor) {
  EXPECT_EQ(wait_exit(spawn(shell("exit 3")).value(), 10s)->to_string(), "exited with code 3");
  const pid_t late = spawn(shell("sleep 100")).value();
  EXPECT_FALSE(wait_exit(late, 10ms));
  signal_group(late, SIGKILL);
  EXPECT_EQ(wait_exit(late, 10s)->to_string(), "was killed by SIGKILL");
}

TEST_F(ProcessTest, AProcessHasEndedWithItsLastThreadAlsoWhileItIsAZombie) {
  EXPECT_FALSE(has_ended(getpid(), start_time(getpid())));
  EXPECT_TRUE(has_ended(getpid(), start_time(getpid()) + 1));  // another process had this pid before
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] { pause(); }).detach();
    syscall(SYS_exit, 0);  // ends this thread only
  }
  const auto started = start_time(getpid());
  while (start_time(child) != 0) std::this_thread::yield();  // until the first thread is a zombie
  EXPECT_FALSE(has_ended(child, started));
  kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(child, started));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(child, started));
}

TEST_F(ProcessTest, AProcessThatCannotBeWatchedForNowIsNotGone) {
  wait_for(spawn(shell("exit 0")).value());  // so that the loop has all its descriptors
  const pid_t pid = spawn(shell("sleep 100")).value();
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = dup(0);
  close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  setrlimit(RLIMIT_NOFILE, &none);
  std::optional<ExitStatus> status;
  const ProcessWatch watch(loop_, pid, [&](ExitStatus s) { status = s; });
  auto end = clock_->now() + 150ms;
  while (clock_->now() < end) loop_.run_one(20ms);
  const auto waited = wait_exit(pid, 10ms);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_FALSE(status);
  EXPECT_FALSE(waited);
  signal_group(pid, SIGKILL);
  end = clock_->now() + 10s;
  while (!status && clock_->now() < end) loop_.run_one(20ms);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->to_string(), "was killed by SIGKILL");
}

TEST_F(ProcessTest, TheDescriptorLimitIsRaisedToTheHardLimit) {
  rlimit before{}, after{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &low);
  raise_descriptor_limit();
  getrlimit(RLIMIT_NOFILE, &after);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

TEST_F(ProcessTest, ALineIsReadFromAPipeOrNot) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  ASSERT_EQ(write(writing.get(), "one\ntwo", 7), 7);
  EXPECT_EQ(read_line(reading, 100, 10s).value(), "one");
  EXPECT_EQ(read_line(reading, 100, 10ms).error().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(write(writing.get(), "12345678", 8), 8);
  EXPECT_EQ(read_line(reading, 8, 10s).error().code(), Code::kUnavailable);
  writing.reset();
  EXPECT_EQ(read_line(reading, 100, 10s).error().code(), Code::kUnavailable);
}

TEST_F(ProcessTest, AProgramThatCannotBeRunIsAnError) {
  SpawnSpec absent;
  absent.argv = {"no-such-program-at-all"};
  EXPECT_EQ(spawn(std::move(absent)).error().code(), Code::kNotFound);
  SpawnSpec folder;
  folder.argv = {"/tmp"};
  EXPECT_EQ(spawn(std::move(folder)).error().code(), Code::kInvalidArgument);
  SpawnSpec nowhere = shell("true");
  nowhere.cwd = "/no/such/folder";
  EXPECT_EQ(spawn(std::move(nowhere)).error().code(), Code::kNotFound);
}

TEST_F(ProcessTest, StreamsEnvironmentAndDescriptorsAreAsGiven) {
  int out[2], extra[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(extra, O_CLOEXEC), 0);
  SpawnSpec spec = shell("echo $WHO; echo extra >&3; pwd; readlink /proc/self/fd/0");
  spec.env.push_back("WHO=shoal");
  spec.cwd = "/";
  spec.out = Fd(out[1]);
  spec.inherited.push_back(Fd(extra[1]));
  const pid_t pid = spawn(std::move(spec)).value();
  EXPECT_TRUE(wait_for(pid).ok());
  char text[100] = {};
  ASSERT_GT(read(out[0], text, sizeof text - 1), 0);
  EXPECT_STREQ(text, "shoal\n/\n/dev/null\n");
  char more[100] = {};
  ASSERT_GT(read(extra[0], more, sizeof more - 1), 0);
  EXPECT_STREQ(more, "extra\n");
  close(out[0]);
  close(extra[0]);
}

TEST_F(ProcessTest, AGroupEndsWithAllItStarted) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  SpawnSpec spec = shell("sleep 1000 & echo started; wait");
  spec.out = Fd(out[1]);
  const pid_t pid = spawn(std::move(spec)).value();
  char text[100];
  ASSERT_GT(read(out[0], text, sizeof text), 0);
  signal_group(pid, SIGKILL);
  EXPECT_EQ(wait_for(pid).signal, SIGKILL);
  EXPECT_EQ(read(out[0], text, sizeof text), 0);  // end of file: the grandchild, which held the pipe, is dead
  close(out[0]);
}

TEST_F(ProcessTest, TheEndOfAForeignProcessIsSeenWithoutItsStatus) {
  // A grandchild, whose parent is another process.
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  SpawnSpec spec = shell("sleep 0.1 & echo $!; wait");
  spec.out = Fd(out[1]);
  const pid_t parent = spawn(std::move(spec)).value();
  char text[100] = {};
  ASSERT_GT(read(out[0], text, sizeof text - 1), 0);
  EXPECT_EQ(wait_for(std::atoi(text)), (ExitStatus{.known = false}));
  wait_for(parent);
  EXPECT_EQ(wait_for(parent), (ExitStatus{.known = false}));  // already reaped
  close(out[0]);
}

TEST_F(ProcessTest, AWatchThatBeginsWhileAnotherEndsDoesNotInheritItsEvent) {
  const pid_t live = spawn(shell("sleep 100")).value();
  std::vector<pid_t> dead = {spawn(shell("exit 0")).value(), spawn(shell("exit 0")).value()};
  std::optional<ExitStatus> status;
  std::unique_ptr<ProcessWatch> watches[2], fresh;
  for (std::size_t i = 0; i < 2; ++i) {
    // The first event drops the other watch, whose event is pending as well, and makes a new watch in its place.
    watches[i] = std::make_unique<ProcessWatch>(loop_, dead[i], [&, i](ExitStatus) {
      watches[1 - i].reset();
      fresh = std::make_unique<ProcessWatch>(loop_, live, [&](ExitStatus s) { status = s; });
    });
  }
  siginfo_t info{};
  for (const pid_t pid : dead) ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  while (!fresh) loop_.run_one(20ms);
  for (int i = 0; i < 5; ++i) loop_.run_one(5ms);
  EXPECT_FALSE(status) << status->to_string();
  signal_group(live, SIGKILL);
  for (int i = 0; i < 500 && !status; ++i) loop_.run_one(20ms);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->to_string(), "was killed by SIGKILL");
  for (const pid_t pid : dead) waitpid(pid, nullptr, 0);
}

TEST_F(ProcessTest, StartTimesTellProcessesApart) {
  EXPECT_GT(start_time(getpid()), 0u);
  EXPECT_EQ(start_time(999'999'999), 0u);
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(start_time(zombie), 0u);
  waitpid(zombie, nullptr, 0);
}

}  // namespace
}  // namespace shoal::runtime
