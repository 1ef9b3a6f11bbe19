// A sender and a receiver with their threads, on this host's loopback.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "runtime/loop/random.h"
#include "scheduler/cli/run/forwarding/receiver.h"
#include "scheduler/cli/run/forwarding/sender.h"

namespace shoal::scheduler::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kLimit = std::chrono::seconds(60);  // hang guard

class SendingTest : public ::testing::Test {
 protected:
  SendingTest() {
    fs::create_directories(folder_ / "source/processes/b-1-5");
    fs::create_directories(folder_ / "copy/processes");
    write("source/processes/b-1-5/process.json", "{}\n");
    write("source/processes/b-1-5/steps.0-0.jsonl", "row\n");
  }
  ~SendingTest() override { fs::remove_all(folder_); }

  void write(const std::string& file, const std::string& text) const { std::ofstream(folder_ / file, std::ios::app) << text; }
  std::string copied() const {
    std::stringstream out;
    out << std::ifstream(folder_ / "copy/processes/b-1-5/steps.0-0.jsonl").rdbuf();
    return out.str();
  }
  actors::Credentials credentials() {
    actors::Credentials out;
    out.token = runtime::Token::random(*random_);
    out.host = "127.0.0.1";
    return out;
  }
  std::unique_ptr<RunFilesReceiver> receiver() {
    auto out = RunFilesReceiver::start(own_, folder_ / "copy");
    EXPECT_TRUE(out) << out.error().message();
    return *std::move(out);
  }
  // Sends what there is, and ends. Without an answer it tries again until `limit`.
  void send(const RunFilesReceiver& to, const actors::Credentials& by, std::chrono::nanoseconds limit = kLimit) {
    RunFilesSender sender(by, {to.address(), "mark", folder_ / "source"}, "b", 0);
    sender.finish(limit);
  }

  const std::unique_ptr<runtime::Random> random_ = runtime::make_real_random();
  const fs::path folder_ = fs::path(testing::TempDir()) / ("sending" + std::to_string(getpid()));
  const actors::Credentials own_ = credentials();
};

TEST_F(SendingTest, TheLastRowsArriveBeforeTheEnd) {
  const auto to = receiver();
  RunFilesSender sender(own_, {to->address(), "mark", folder_ / "source"}, "b", 0);
  for (int i = 0; i < 10'000; ++i) write("source/processes/b-1-5/steps.0-0.jsonl", "row " + std::to_string(i) + "\n");
  sender.finish(kLimit);
  EXPECT_TRUE(copied().ends_with("\nrow 9999\n"));
}

TEST_F(SendingTest, AHostThatSharesTheFolderSendsNothing) {
  const auto to = receiver();
  write("source/.first-host", "mark\n");
  send(*to, own_);
  EXPECT_EQ(copied(), "");
}

TEST_F(SendingTest, AHostWithoutTheSecretIsRefused) {
  const auto to = receiver();
  send(*to, credentials(), std::chrono::milliseconds(500));
  EXPECT_EQ(copied(), "");
  send(*to, own_);
  EXPECT_EQ(copied(), "row\n");
}

TEST(RecordPlace, ComesBackFromItsText) {
  const RecordPlace place{"10.0.0.1:7", "mark", "/a \"folder\""};
  const auto back = RecordPlace::parse(place.to_text());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address, place.address);
  EXPECT_EQ(back->mark, place.mark);
  EXPECT_EQ(back->folder, place.folder);
  for (const char* text : {"", "{", "[]", "{}", R"({"address":1,"mark":"a","folder":"/a"})", R"({"address":"a","mark":"b","folder":"c"})"})
    EXPECT_FALSE(RecordPlace::parse(text)) << text;
}

}  // namespace
}  // namespace shoal::scheduler::cli
