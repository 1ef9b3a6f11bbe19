#include "scheduler/node/logs/log_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

namespace fs = std::filesystem;

class LogFiles : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/shoal-logs.XXXXXX";
    folder_ = mkdtemp(path);
    fs::create_directory(folder_ + "/logs");
    write("token", "secret");
    write("logs/node.log", "first\nsecond\n");
    write("logs/head.log", "");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }
  std::string logs() const { return folder_ + "/logs"; }

  std::string folder_;
};

TEST_F(LogFiles, LogsOfARolesLastDeadProcessesStay) {
  for (int pid = 1; pid <= 9; ++pid) {
    const std::string name = "logs/head-" + std::to_string(pid) + ".log";
    write(name, "x");
    fs::last_write_time(folder_ + "/" + name, fs::file_time_type(std::chrono::hours(pid)));
  }
  write("logs/head-x.log", "of nobody");
  write("logs/node-1.log", "another's");
  forget_role_logs(logs(), "head", {2}, 3);
  EXPECT_EQ(log_files(logs()), (std::vector<std::string>{"head-2.log", "head-7.log", "head-8.log", "head-9.log", "head-x.log", "head.log",
                                                         "node-1.log", "node.log"}));
}

TEST_F(LogFiles, AreListedByName) {
  EXPECT_EQ(log_files(logs()), (std::vector<std::string>{"head.log", "node.log"}));
  EXPECT_TRUE(log_files(folder_ + "/none").empty());
}

TEST_F(LogFiles, AreReadFromTheirEnd) {
  EXPECT_EQ(read_log_file(logs(), "node.log", 100).value(), "first\nsecond\n");
  EXPECT_EQ(read_log_file(logs(), "node.log", 7).value(), "second\n");
  EXPECT_EQ(read_log_file(logs(), "node.log", 0).value(), "");
  EXPECT_EQ(read_log_file(logs(), "head.log", 100).value(), "");
  EXPECT_EQ(read_log_file(logs(), "other.log", 100).error().code(), Code::kNotFound);
}

TEST_F(LogFiles, NothingOutsideOfTheFolderIsRead) {
  for (const char* name : {"../token", "/etc/hostname", "..", ".", "", "./node.log", "a/../node.log"}) {
    EXPECT_EQ(read_log_file(logs(), name, 100).error().code(), Code::kInvalidArgument) << name;
  }
  EXPECT_EQ(read_log_file("", "etc", 100).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(read_log_file(logs(), std::string("node.log\0x", 10), 100).error().code(), Code::kInvalidArgument);
}

TEST_F(LogFiles, NeitherLinksNorPipesNorFoldersAreFiles) {
  fs::create_symlink(folder_ + "/token", logs() + "/link.log");
  fs::create_directory(logs() + "/folder.log");
  ASSERT_EQ(mkfifo((logs() + "/pipe.log").c_str(), 0600), 0);
  EXPECT_EQ(log_files(logs()), (std::vector<std::string>{"head.log", "node.log"}));
  for (const char* name : {"link.log", "folder.log", "pipe.log"}) {
    EXPECT_EQ(read_log_file(logs(), name, 100).error().code(), Code::kNotFound) << name;
  }
}

}  // namespace
}  // namespace shoal::scheduler
