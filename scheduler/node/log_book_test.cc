#include "scheduler/node/log_book.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using Stream = Launcher::Stream;

const WorkerId kFirst{1}, kSecond{2};

class LogBookTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  LogBook make() {
    LogBook::Options o;
    o.folder = folder_;
    o.max_file_bytes = 100;
    o.max_files = 1;
    return LogBook(o);
  }
  std::size_t num_files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }
  std::string folder_ = "/tmp/shoal-logs.XXXXXX";
};

TEST_F(LogBookTest, WhatWasRotatedIsReadBeforeWhatCameLater) {
  LogBook book = make();
  for (int i = 10; i < 25; ++i) book.write(kFirst, Stream::kOut, "line " + std::to_string(i) + "\n");  // 8 bytes each
  book.close(kFirst);
  EXPECT_EQ(num_files(), 2u);
  const std::string all = book.read(kFirst, Stream::kOut, 1000).value();
  EXPECT_TRUE(all.starts_with("line 10\n"));
  EXPECT_TRUE(all.ends_with("line 23\nline 24\n"));
  EXPECT_EQ(all.size(), 15u * 8u);
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 100).value(), all.substr(20));
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 8).value(), "line 24\n");
}

TEST_F(LogBookTest, BothHalvesGoWhenTheBoundIsReached) {
  LogBook book = make();
  for (int i = 10; i < 25; ++i) book.write(kFirst, Stream::kErr, "line " + std::to_string(i) + "\n");
  book.close(kFirst);
  book.write(kSecond, Stream::kErr, "x\n");
  book.close(kSecond);
  EXPECT_EQ(num_files(), 1u);
  EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal::scheduler
