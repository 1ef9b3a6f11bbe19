#include "runtime/process/captured.h"

#include <csignal>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

Result<Captured> run(const std::string& script, const CaptureLimits& limits = {}) {
  SpawnSpec spec;
  spec.argv = {"sh", "-c", script};
  spec.env = {"PATH=/usr/bin:/bin"};
  return run_captured(std::move(spec), limits);
}

// Writes a million bytes, more than a pipe holds.
const std::string kMuch = "head -c 1000000 /dev/zero | tr '\\0' 'x'";

TEST(RunCaptured, KeepsBothStreamsAndTheEnd) {
  const auto captured = run("echo some; echo more >&2; exit 3");
  ASSERT_TRUE(captured) << captured.error().to_string();
  EXPECT_EQ(captured->out, "some\n");
  EXPECT_EQ(captured->err, "more\n");
  EXPECT_EQ(captured->ended.to_string(), "exited with code 3");
}

TEST(RunCaptured, AFullStreamStopsNeitherTheProgramNorTheOtherStream) {
  for (const std::string& script : {kMuch + "; " + kMuch + " >&2; echo last >&2", kMuch + " >&2; echo last >&2; " + kMuch}) {
    const auto captured = run(script, {.err_bytes = 1000});
    ASSERT_TRUE(captured) << captured.error().to_string();
    EXPECT_EQ(captured->out, std::string(1'000'000, 'x'));
    EXPECT_EQ(captured->err, std::string(995, 'x') + "last\n");
    EXPECT_TRUE(captured->ended.ok());
  }
}

TEST(RunCaptured, AProgramThatExceedsALimitIsKilled) {
  EXPECT_EQ(run("exec sleep 600", {.time = 20ms}).error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(run("exec >&- 2>&-; exec sleep 600", {.time = 20ms}).error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(run("exec yes", {.out_bytes = 100'000}).error().code(), Code::kResourceExhausted);
}

TEST(RunCaptured, ADescendantThatKeepsTheStreamsIsNotAwaited) {
  const auto captured = run("sleep 600 & echo $!");
  ASSERT_TRUE(captured) << captured.error().to_string();
  EXPECT_EQ(kill(std::stoi(captured->out), SIGKILL), 0);  // the descendant still runs
}

TEST(RunCaptured, AProgramThatCannotBeStartedIsAnError) {
  SpawnSpec spec;
  spec.argv = {"/no/such/program"};
  EXPECT_EQ(run_captured(std::move(spec), {}).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal::runtime
