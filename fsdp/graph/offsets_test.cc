#include "fsdp/graph/offsets.h"

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

// A graph of forward(a), forward(b) and forward(c) in a row, and an unshard on which no node depends.
StepGraph three() {
  StepGraph g({"a", "b", "c"});
  for (std::int32_t u = 0; u < 3; ++u) EXPECT_TRUE(g.add(Op::kForward, u, {}));
  EXPECT_TRUE(g.add(Op::kUnshard, 0, {}));
  return g;
}

TEST(Offsets, BuffersOfOneTimeLieSideBySide) {
  const auto at = place(three(), {{100, 0, 1}, {100, 1, 2}});
  EXPECT_NE(at.by_buffer[0], at.by_buffer[1]);
  EXPECT_EQ(at.bytes, 128u + 100u);
}

TEST(Offsets, BuffersOfDifferentTimesShareBytes) {
  const auto at = place(three(), {{100, 0, 0}, {60, 1, 1}, {100, 2, 2}});
  EXPECT_EQ(at.by_buffer, (std::vector<std::size_t>{0, 0, 0}));
  EXPECT_EQ(at.bytes, 100u);
}

TEST(Offsets, UnorderedLanesMayOverlap) {
  const auto at = place(three(), {{64, 0, 0}, {64, 3, 3}});  // no order between nodes 0 and 3
  EXPECT_EQ(at.bytes, 128u);
}

TEST(Offsets, MemoryThatOutlivesTheStepIsNotShared) {
  const auto at = place(three(), {{64, 0, -1}, {64, 2, 2}});
  EXPECT_EQ(at.bytes, 128u);
}

TEST(Offsets, AGapIsFilled) {
  const auto at = place(three(), {{256, 0, 2}, {128, 0, 1}, {64, 2, 2}, {64, 0, 0}});
  EXPECT_EQ(at.by_buffer[2], at.by_buffer[1]);  // behind the buffer of 256 bytes, in the bytes of the buffer of 128
  EXPECT_EQ(at.bytes, 256u + 128u + 64u);
}

}  // namespace
}  // namespace shoal::fsdp
