#include "scheduler/node/processes/zygote.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

// A zygote with a fake interpreter: `text` is a program, which finds the node's socket as descriptor 3.
class ZygoteTest : public testing::Test {
 protected:
  void start(const std::string& text) {
    const std::string path = testing::TempDir() + "/zygote" + std::to_string(getpid());
    std::ofstream(path) << "#!/usr/bin/env python3\nimport json, os, socket, sys, time\nlink = socket.socket(fileno=3)\n" << text;
    chmod(path.c_str(), 0700);
    zygote_ = Zygote::start(loop_, runtime::make_null_log(), path, true, [] {}).value();
  }
  void fork(std::uint64_t worker, const Zygote::Env& env = {}) {
    actors::StartWorker spec;
    spec.worker = WorkerId{worker};
    const auto null = [] { return Fd(open("/dev/null", O_WRONLY | O_CLOEXEC)); };
    zygote_->fork(spec, env, null(), null(), [this](Result<pid_t> r) { answers_.push_back(std::move(r)); });
  }
  // Returns false if so many answers do not come in time.
  bool run_until_answers(std::size_t count) {
    for (int i = 0; i < 500 && answers_.size() < count; ++i) loop_.run_one(std::chrono::milliseconds(20));
    return answers_.size() == count;
  }

  runtime::Loop loop_;
  std::unique_ptr<Zygote> zygote_;
  std::vector<Result<pid_t>> answers_;
};

TEST_F(ZygoteTest, AZygoteThatEndsDuringItsStartFailsWaitingRequests) {
  start("time.sleep(1000)\n");
  fork(1);
  fork(2);
  zygote_.reset();
  EXPECT_TRUE(answers_.empty());  // the destructor itself called no callback
  ASSERT_TRUE(run_until_answers(2));
  EXPECT_EQ(answers_[0].error().reason(), "ZygoteDied");
}

TEST_F(ZygoteTest, RequestsBeyondTheSocketsBufferWait) {
  start(R"(
link.send(b'{"ready": true}')
time.sleep(0.3)
for turn in range(1, 101):
    data, fds, _, _ = socket.recv_fds(link, 1 << 20, 2)
    link.send(json.dumps({"id": json.loads(data)["id"], "pid": turn}).encode())
)");
  for (std::uint64_t worker = 1; worker <= 100; ++worker) fork(worker, {{"LONG", std::string(60'000, 'x')}});
  ASSERT_TRUE(run_until_answers(100));
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(answers_[i].value(), static_cast<pid_t>(i + 1));
}

}  // namespace
}  // namespace shoal::scheduler
