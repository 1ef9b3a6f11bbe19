#include "scheduler/node/logs/log_book.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using Stream = Launcher::Stream;

const WorkerId kFirst{1}, kSecond{2};

class LogBookTest : public testing::Test {
 protected:
  LogBook::Options options() const {
    LogBook::Options o;
    o.folder = folder_;
    return o;
  }
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

TEST_F(LogBookTest, RotatedPartsAreReadBeforeLaterOnes) {
  LogBook book = make();
  for (int i = 10; i < 25; ++i) book.write(kFirst, Stream::kOut, "line " + std::to_string(i) + "\n");  // each line has 8 bytes
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

TEST_F(LogBookTest, TheFilesOfEndedWorkersHaveABoundTogether) {
  auto o = options();
  o.max_ended_bytes = 250;
  LogBook book(o);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    book.write(WorkerId{id}, Stream::kOut, std::string(50, 'o'));
    book.write(WorkerId{id}, Stream::kErr, std::string(49, 'e'));
    book.close(WorkerId{id});
  }
  EXPECT_FALSE(book.read(WorkerId{1}, Stream::kOut, 1000));
  EXPECT_FALSE(book.read(WorkerId{2}, Stream::kErr, 1000));
  EXPECT_TRUE(book.read(WorkerId{3}, Stream::kOut, 1000));
  EXPECT_TRUE(book.read(WorkerId{4}, Stream::kErr, 1000));
  // More than max_ended_bytes: only the files of the worker that ended last stay.
  book.write(WorkerId{5}, Stream::kOut, std::string(1000, 'x'));
  book.close(WorkerId{5});
  EXPECT_TRUE(book.read(WorkerId{5}, Stream::kOut, 2000));
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(LogBookTest, OutputIsFoundByItsCall) {
  const TaskRef a{WorkerId{5}, 1}, b{WorkerId{5}, 2};
  const TaskMark of_a{a, "f"}, of_b{b, ""};
  LogBook book(options());
  book.write(kFirst, Stream::kOut, "before\n");
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 1000, a).error().reason(), "NoMarks");
  EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000, a).error().reason(), "NoMarks");
  book.mark(kFirst, Stream::kOut, of_a);
  book.write(kFirst, Stream::kOut, "one\n");
  book.write(kFirst, Stream::kOut, "two\n");
  book.mark(kFirst, Stream::kErr, of_b);
  book.write(kFirst, Stream::kErr, "err\n");
  book.mark(kFirst, Stream::kOut, of_b);
  book.write(kFirst, Stream::kOut, "three\n");
  book.mark(kFirst, Stream::kOut, of_a);
  book.write(kFirst, Stream::kOut, "four\n");
  for (int ended = 0; ended < 2; ++ended) {
    EXPECT_EQ(book.read(kFirst, Stream::kOut, 1000, a).value(), "one\ntwo\nfour\n");
    EXPECT_EQ(book.read(kFirst, Stream::kOut, 1000, b).value(), "three\n");
    EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000, b).value(), "err\n");
    EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000, a).value(), "");
    EXPECT_EQ(book.read(kFirst, Stream::kOut, 13, a).value(), "o\nfour\n");  // the part of the output that is still in a file
    std::string pieces;
    book.pieces(kFirst, Stream::kOut, 1000, [&](auto function, auto text) { pieces += fmt::format("[{}:{}]", function, text); });
    EXPECT_EQ(pieces, "[:before\n][f:one\ntwo\n][:three\n][f:four\n]");
    pieces.clear();
    book.pieces(kFirst, Stream::kOut, 13, [&](auto function, auto text) { pieces += fmt::format("[{}:{}]", function, text); });
    EXPECT_EQ(pieces, "[f:o\n][:three\n][f:four\n]");
    EXPECT_EQ(book.function(kFirst, Stream::kOut), "f");
    book.close(kFirst);
  }
  book.pieces(kSecond, Stream::kOut, 1000, [](auto, auto) { FAIL() << "of a worker that printed nothing"; });
  EXPECT_EQ(book.read(kSecond, Stream::kOut, 1000, a).error().code(), Code::kNotFound);
}

TEST_F(LogBookTest, AStreamWithoutMarksIsOfNoCallIfTheOtherHasThem) {
  const TaskRef call{WorkerId{5}, 1};
  LogBook book(options());
  book.write(kFirst, Stream::kErr, "a warning of C\n");
  book.mark(kFirst, Stream::kOut, {});  // a mark without a call, as where a worker begins to serve
  book.write(kFirst, Stream::kOut, "of no call\n");
  for (int ended = 0; ended < 2; ++ended) {
    EXPECT_EQ(book.read(kFirst, Stream::kOut, 1000, call).value(), "");
    EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000, call).value(), "");
    book.close(kFirst);
  }
  book.mark(kSecond, Stream::kOut, {});  // now a worker with a mark, but without output
  EXPECT_EQ(book.read(kSecond, Stream::kErr, 1000, call).value(), "");
}

TEST_F(LogBookTest, TheLastOfManyCallsAreFound) {
  LogBook book(options());
  const auto call = [](std::uint64_t n) { return TaskRef{WorkerId{5}, n}; };
  const std::uint64_t count = LogBook::kMaxSpans + 1;
  for (std::uint64_t n = 1; n <= count; ++n) {
    book.mark(kFirst, Stream::kOut, {call(n), ""});
    book.write(kFirst, Stream::kOut, std::to_string(n) + "\n");
  }
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 10'000, call(1)).value(), "");
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 10'000, call(2)).value(), "2\n");
  EXPECT_EQ(book.read(kFirst, Stream::kOut, 10'000, call(count)).value(), std::to_string(count) + "\n");
}

TEST_F(LogBookTest, AFullDiskGetsNothingMoreAndCausesOfDeathsStay) {
  auto o = options();
  std::size_t free = 1000;
  o.min_free_bytes = 500;
  o.check_after_bytes = 10;
  o.free_bytes = [&](const std::string& folder) {
    EXPECT_EQ(folder, folder_);
    return free;
  };
  LogBook book(o);
  book.write(kFirst, Stream::kErr, "one\n");
  free = 499;
  book.write(kFirst, Stream::kErr, std::string(20, 'x') + "\n");
  book.write(kFirst, Stream::kErr, "two\n");
  EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000).value(), "one\n");
  EXPECT_EQ(book.tail(kFirst), "one\n" + std::string(20, 'x') + "\ntwo");
  free = 500;
  book.write(kFirst, Stream::kErr, std::string(20, 'y') + "\n");
  EXPECT_EQ(book.read(kFirst, Stream::kErr, 1000).value(), "one\n" + std::string(20, 'y') + "\n");
}

}  // namespace
}  // namespace shoal::scheduler
