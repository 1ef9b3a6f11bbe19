#include "scheduler/node/logs/task_marks.h"

#include <vector>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

const std::string kId = "00000000000000ab00000000000000cd";
const TaskRef kTask{WorkerId{0xab}, 0xcd};

TEST(TaskMarksTest, AMarkNamesTheCallAndTheFunction) {
  const auto mark = parse_mark("\x01shoal task " + kId + " half of it");
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->task, kTask);
  EXPECT_EQ(mark->name, "half of it");
  EXPECT_EQ(parse_mark("\x01shoal task " + kId + " ")->name, "");
  EXPECT_EQ(parse_mark("\x01shoal task " + kId)->name, "");
}

TEST(TaskMarksTest, AnIncompleteMarkIsText) {
  const std::string bad = "\x01shoal task zz" + kId.substr(2);
  for (const std::string_view line : {"", "\x01", "shoal task", "\x01shoal task ", "\x01shoal task 12", bad.c_str()}) {
    EXPECT_FALSE(parse_mark(line)) << line;
  }
  EXPECT_FALSE(parse_task(kId + "0"));
  EXPECT_FALSE(parse_task(""));
}

TEST(TaskMarksTest, LinesBetweenMarksStayTogether) {
  const std::string mark = "\x01shoal task " + kId + " f\n";
  std::vector<std::string> out;
  const auto divided = [&](const std::string& lines) {
    out.clear();
    divide(lines, [&](const TaskMark& m) { out.push_back("<" + m.name + ">"); }, [&](std::string_view text) { out.emplace_back(text); });
    return out;
  };
  EXPECT_EQ(divided("a\n\nb\n" + mark + mark + "c\nd"), (std::vector<std::string>{"a\n\nb\n", "<f>", "<f>", "c\nd"}));
  EXPECT_EQ(divided(mark), (std::vector<std::string>{"<f>"}));
  EXPECT_EQ(divided("\n"), (std::vector<std::string>{"\n"}));
  EXPECT_EQ(divided(""), (std::vector<std::string>{}));
}

TEST(TaskMarksTest, AMarkEndsALineThatHasNoEnd) {
  const std::string mark = "\x01shoal task " + kId + " f\n", no_mark = "\x01shoal task 12";
  std::vector<std::string> out;
  const auto divided = [&](const std::string& lines) {
    out.clear();
    divide(lines, [&](const TaskMark& m) { out.push_back("<" + m.name + ">"); }, [&](std::string_view text) { out.emplace_back(text); });
    return out;
  };
  EXPECT_EQ(divided("a\nb" + mark + "c\n"), (std::vector<std::string>{"a\nb\n", "<f>", "c\n"}));
  EXPECT_EQ(divided("b" + mark), (std::vector<std::string>{"b\n", "<f>"}));
  EXPECT_EQ(divided("a" + no_mark + mark + "c"), (std::vector<std::string>{"a" + no_mark + "\n", "<f>", "c"}));
}

TEST(TaskMarksTest, LongNamesAreTruncated) {
  const std::string mark = "\x01shoal task " + kId + " ";
  EXPECT_EQ(parse_mark(mark + std::string(60'000, 'x'))->name, std::string(kMaxMarkName, 'x'));
  EXPECT_EQ(parse_mark(mark + std::string(kMaxMarkName, 'x'))->name.size(), kMaxMarkName);
  // The name is cut before a character that does not fit as a whole.
  EXPECT_EQ(parse_mark(mark + std::string(kMaxMarkName - 1, 'x') + "\xc3\xb6")->name.size(), kMaxMarkName - 1);
}

}  // namespace
}  // namespace shoal::scheduler
