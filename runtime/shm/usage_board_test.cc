#include "runtime/shm/usage_board.h"

#include <vector>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

TEST(UsageBoard, AddsUpItsMembersReports) {
  const Fd memory = make_memory("board", UsageBoard::kBytes).value();
  const Mapping node = map(memory, UsageBoard::kBytes, Access::kReadWrite).value();
  const Mapping process = map(memory, UsageBoard::kBytes, Access::kReadWrite).value();
  UsageBoard here(node.data()), there(process.data());
  here.set_limit(1000);
  here.set_members(3);
  there.set_kept(0, 100);
  there.set_kept(2, 20);
  there.add_spilled(2, 7);
  there.add_spilled(2, -3);
  EXPECT_EQ(there.limit(), 1000u);
  EXPECT_EQ(here.total().kept, 120u);
  EXPECT_EQ(here.total().spilled, 4u);
  EXPECT_EQ(here.usage(2).kept, 20u);
  here.clear(2);
  EXPECT_EQ(there.total().kept, 100u);
  EXPECT_EQ(there.total().spilled, 0u);
}

TEST(UsageBoard, HasRoomForItsLastMember) {
  std::vector<std::uint64_t> memory(UsageBoard::kBytes / 8);
  UsageBoard membership_page(reinterpret_cast<std::byte*>(memory.data()));
  membership_page.set_members(UsageBoard::kMaxMembers + 10);  // more than there are
  membership_page.set_kept(UsageBoard::kMaxMembers - 1, 5);
  EXPECT_EQ(membership_page.total().kept, 5u);
}

}  // namespace
}  // namespace shoal::runtime
