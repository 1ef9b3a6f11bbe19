#include "actors/session/logs/line_fold.h"

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;

class LineFoldTest : public testing::Test {
 protected:
  std::string add(const std::string& who, const std::string& line) { return fold_.add(who, line, now_); }
  LineFold fold_{{.window = 2s, .max_lines = 3}};
  runtime::TimePoint now_{};
};

TEST_F(LineFoldTest, ALineOfSeveralProcessesIsShownOnceAndCounted) {
  EXPECT_EQ(add("A pid=1", "loading"), "(A pid=1) loading\n");
  EXPECT_EQ(fold_.next(), std::nullopt);
  EXPECT_EQ(add("A pid=2", "loading"), "");
  EXPECT_EQ(add("A pid=3", "loading"), "");
  EXPECT_EQ(add("A pid=3", "other"), "(A pid=3) other\n");
  EXPECT_EQ(fold_.next(), now_ + 2s);
  now_ += 2s;
  EXPECT_EQ(fold_.over(now_), "(A pid=1) loading (×3; SHOAL_DEDUP_LOGS=0 shows each)\n");
  EXPECT_EQ(fold_.over(now_), "");
  EXPECT_EQ(add("A pid=2", "loading"), "(A pid=2) loading\n");  // the same line, long after its window
}

TEST_F(LineFoldTest, RepeatedLinesOfOneProcessAreNotFolded) {
  EXPECT_EQ(add("A", "tick"), "(A) tick\n");
  EXPECT_EQ(add("A", "tick"), "(A) tick\n");
  EXPECT_EQ(add("A", ""), "(A) \n");
  EXPECT_EQ(add("B", ""), "(B) \n");  // empty lines are not folded
}

TEST_F(LineFoldTest, TheNumberOfRememberedLinesIsBounded) {
  add("A", "1");
  add("B", "1");
  add("A", "2");
  add("A", "3");
  EXPECT_EQ(add("A", "4"), "(A) 1 (×2; SHOAL_DEDUP_LOGS=0 shows each)\n(A) 4\n");
  EXPECT_EQ(add("B", "1"), "(B) 1\n");
}

}  // namespace
}  // namespace shoal::actors
