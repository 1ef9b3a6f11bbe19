#include "scheduler/web/runs_api.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler::web {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class TextReply final : public HttpReply {
 public:
  void send(int status, const json& body) override { status_ = status, text_ = body.dump(); }
  void send_text(const std::string&, const std::string& text, const std::string&) override { status_ = 200, text_ = text; }
  void begin(const std::string&) override {}
  void write(std::string_view) override {}
  void when_sent(std::function<void()>) override {}
  void end() override {}
  bool gone() const override { return false; }

  int status_ = 0;
  std::string text_;
};

class RunsApiTest : public testing::Test {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000, kBegin = 1'700'000'000 * kSecond;

  void TearDown() override { fs::remove_all(root_); }

  json rows() {
    HttpRequest request;
    request.method = "GET", request.path = "/api/v1/runs";
    const auto reply = std::make_shared<TextReply>();
    EXPECT_TRUE(api_.handle(request, reply));
    EXPECT_EQ(reply->status_, 200);
    return json::parse(reply->text_)["rows"];
  }
  // A rank of another host ends this step.
  void end_step(std::uint64_t step) {
    const fs::path process = root_ / "run" / "processes" / "elsewhere-7-1";
    fs::create_directories(process);
    std::ofstream(process / "process.json") << R"({"role":"rank","rank":0,"world":1,"host":"elsewhere","pid":7,"start":1})";
    std::ofstream(process / "steps.0-0.jsonl", std::ios::app)
        << json{{"step", step}, {"n", 1}, {"rank", 0}, {"world", 1}, {"gen", 1}, {"end", now_us_}, {"us", 1000}, {"max", 1000}}.dump()
        << "\n";
  }
  void beat(std::uint64_t step) {
    runtime::LivePage page = {};
    page.magic = runtime::LivePage::kMagic;
    page.pid = 7, page.start_us = 1, page.beat_us = page.since_us = now_us_, page.step = step, page.world = page.generation = 1;
    const fs::path live = root_ / "run" / "processes" / "elsewhere-7-1" / "live";
    std::ofstream(live, std::ios::binary).write(reinterpret_cast<const char*>(&page), sizeof page);
    fs::last_write_time(live, fs::file_time_type(std::chrono::file_clock::from_sys(
                                  std::chrono::sys_time<std::chrono::microseconds>(std::chrono::microseconds(now_us_)))));
  }

  const fs::path root_ = fs::path(testing::TempDir()) / ("runs-api-" + std::to_string(getpid()));
  std::int64_t now_us_ = kBegin;
  RunsApi api_{{.folders = {root_}, .now_us = [this] { return now_us_; }}};
};

TEST_F(RunsApiTest, ALostRunIsReadAgainOnceAProcessBeats) {
  end_step(1);
  beat(1);
  now_us_ += 100 * kSecond;
  ASSERT_EQ(rows().size(), 1u);
  EXPECT_EQ(rows()[0]["state"], "lost");
  EXPECT_EQ(rows()[0]["step"], 1);

  end_step(2);  // without a beat
  now_us_ += 100 * kSecond;
  EXPECT_EQ(rows()[0]["step"], 1);

  beat(2);
  now_us_ += kSecond;
  EXPECT_EQ(rows()[0]["step"], 1);  // a list is not read again within some seconds
  now_us_ += 5 * kSecond;
  EXPECT_EQ(rows()[0]["step"], 2);
  EXPECT_EQ(rows()[0]["state"], "running");
}

TEST_F(RunsApiTest, ARunThatEndsIsReadAtOnce) {
  end_step(1);
  beat(1);
  now_us_ += kSecond;
  fs::last_write_time(root_ / "run", fs::file_time_type::clock::now() - std::chrono::hours(1));  // file systems' clocks are coarse
  EXPECT_EQ(rows()[0]["state"], "running");
  std::ofstream(root_ / "run" / "exit.json") << R"({"exit_code":3,"cause":"it broke"})";
  EXPECT_EQ(rows()[0]["state"], "failed");
}

}  // namespace
}  // namespace shoal::scheduler::web
