#include "fsdp/layout/hosts.h"

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

std::vector<Block> blocks_of(const Hosts& hosts, int host) { return {hosts.blocks(host).begin(), hosts.blocks(host).end()}; }

TEST(Hosts, AllRanksOfOneHostAreOneBlock) {
  const Hosts hosts(6);
  EXPECT_EQ(hosts.num_hosts(), 1);
  EXPECT_EQ(blocks_of(hosts, 0), (std::vector<Block>{{0, 6}}));
}

TEST(Hosts, AHostWithAlignedRanksIsOneBlock) {
  const Hosts hosts({0, 0, 1, 1, 2, 2});
  for (int h = 0; h < 3; ++h) EXPECT_EQ(blocks_of(hosts, h).size(), 1u);
  EXPECT_EQ(blocks_of(hosts, 1), (std::vector<Block>{{2, 2}}));
  EXPECT_EQ(blocks_of(hosts, 2), (std::vector<Block>{{4, 2}}));
}

TEST(Hosts, OtherRanksAreDividedIntoAlignedBlocks) {
  const Hosts hosts({0, 0, 0, 1, 1, 1});
  EXPECT_EQ(blocks_of(hosts, 0), (std::vector<Block>{{0, 2}, {2, 1}}));
  EXPECT_EQ(blocks_of(hosts, 1), (std::vector<Block>{{3, 1}, {4, 2}}));
  const Hosts mixed({0, 1, 0, 1});
  EXPECT_EQ(blocks_of(mixed, 0), (std::vector<Block>{{0, 1}, {2, 1}}));
}

TEST(Hosts, BlocksFollowThePlacesOfTheRanks) {
  const Hosts hosts({0, 0, 1, 1, 1}, {0, 1, 2, 4, 6});  // the last two ranks have two of eight leaves each
  EXPECT_EQ(blocks_of(hosts, 0), (std::vector<Block>{{0, 2}}));
  EXPECT_EQ(blocks_of(hosts, 1), (std::vector<Block>{{2, 1}, {3, 2}}));
  EXPECT_EQ(hosts.place_of(3), 4);
  const Hosts halves({0, 1, 1}, {0, 4, 6});
  EXPECT_EQ(blocks_of(halves, 1), (std::vector<Block>{{1, 2}}));
}

TEST(Hosts, PartnersDivideTheRanksOfAnotherHost) {
  const Hosts hosts({0, 0, 0, 1, 1});
  EXPECT_EQ(hosts.partner(0, 1), 3);
  EXPECT_EQ(hosts.partner(1, 1), 4);
  EXPECT_EQ(hosts.partner(2, 1), 3);
  EXPECT_EQ(hosts.partner(4, 0), 1);
  EXPECT_TRUE(hosts.same_host(0, 2));
  EXPECT_FALSE(hosts.same_host(2, 3));
}

}  // namespace
}  // namespace shoal::fsdp
