#include "storage/replica_table.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::storage {
namespace replica_table_test {

using Object = ReplicaTable::Object;
using Piece = ReplicaTable::Piece;
using All = std::vector<Object>;

constexpr NodeId kHome{7}, kOtherHome{8};
constexpr WorkerId kOne{1}, kTwo{2};
constexpr JobId kJob{1}, kOtherJob{2};

Object object(std::uint64_t n, NodeId home = kHome, JobId job = kJob) { return {job, ObjectId{n}, home}; }

class ReplicaTableTest : public testing::Test {
 protected:
  ReplicaTable table_{ReplicaTable::Options{10, 100, 250}};
};

TEST_F(ReplicaTableTest, OneTransferServesAllRequests) {
  EXPECT_TRUE(table_.wanted(object(1), kOne));
  EXPECT_FALSE(table_.wanted(object(1), kTwo));
  EXPECT_FALSE(table_.let_go(object(1), kOne));
  EXPECT_FALSE(table_.let_go(object(1), kOne));
  EXPECT_TRUE(table_.let_go(object(1), kTwo));
  EXPECT_EQ(table_.transfer(object(1)), std::nullopt);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(ReplicaTableTest, AnObjectOfOnePartIsCompleteAtOnce) {
  table_.wanted(object(1), kOne);
  EXPECT_FALSE(table_.complete(object(1)));
  table_.begun(object(1), 5, 5, {object(2)});
  EXPECT_TRUE(table_.complete(object(1)));
  EXPECT_TRUE(table_.next().empty());
  EXPECT_EQ(table_.contained(object(1)), All{object(2)});
}

TEST_F(ReplicaTableTest, AHomeThatDoesNotAnswerHoldsUpNoOther) {
  for (const NodeId home : {kHome, kOtherHome}) {
    table_.wanted(object(1, home), kOne);
    table_.begun(object(1, home), 1000, 10, {});
    EXPECT_EQ(table_.next().size(), 3u);
  }
  table_.node_gone(kHome);
  EXPECT_EQ(table_.under_way(), 600u);  // until the answers arrive
  EXPECT_TRUE(table_.next().empty());
}

TEST_F(ReplicaTableTest, PartsAreAskedForInOrderAndWithinABound) {
  table_.wanted(object(1), kOne);
  table_.begun(object(1), 345, 10, {});
  auto pieces = table_.next();
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].offset, 10u);
  EXPECT_EQ(pieces[2].offset, 210u);
  EXPECT_EQ(table_.under_way(), 300u);
  EXPECT_TRUE(table_.next().empty());
  EXPECT_FALSE(table_.arrived(pieces[1]));
  const auto last = table_.next();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].offset, 310u);
  EXPECT_EQ(last[0].bytes, 35u);
  EXPECT_FALSE(table_.arrived(pieces[0]));
  EXPECT_FALSE(table_.arrived(last[0]));
  EXPECT_TRUE(table_.arrived(pieces[2]));
  EXPECT_TRUE(table_.complete(object(1)));
  EXPECT_EQ(table_.under_way(), 0u);
}

TEST_F(ReplicaTableTest, TheFirstBegunTransferIsContinuedFirst) {
  for (const std::uint64_t n : {1, 2}) table_.wanted(object(n), kOne);
  table_.begun(object(2), 1000, 0, {});
  table_.begun(object(1), 1000, 0, {});
  for (const Piece& piece : table_.next()) EXPECT_EQ(piece.object, object(1));
}

TEST_F(ReplicaTableTest, PartsOfATransferThatWasGivenUpCountForNothing) {
  table_.wanted(object(1), kOne);
  table_.begun(object(1), 150, 0, {});
  const auto before = table_.next();
  ASSERT_EQ(before.size(), 2u);
  EXPECT_TRUE(table_.let_go(object(1), kOne));
  EXPECT_TRUE(table_.wanted(object(1), kTwo));  // a new transfer
  table_.begun(object(1), 150, 0, {});
  for (const Piece& piece : before) EXPECT_FALSE(table_.arrived(piece));
  EXPECT_FALSE(table_.complete(object(1)));
  EXPECT_EQ(table_.under_way(), 0u);
}

TEST_F(ReplicaTableTest, ReplicasGoWithTheirProcessesHomesAndJobs) {
  table_.wanted(object(1), kOne);
  table_.wanted(object(2), kOne);
  table_.wanted(object(2), kTwo);
  table_.wanted(object(3, kOtherHome), kTwo);
  table_.wanted(object(4, kHome, kOtherJob), kTwo);
  EXPECT_EQ(table_.worker_gone(kOne), All{object(1)});
  EXPECT_EQ(table_.end_job(kOtherJob), (All{object(4, kHome, kOtherJob)}));
  EXPECT_EQ(table_.node_gone(kOtherHome), (All{object(3, kOtherHome)}));
  EXPECT_EQ(table_.find(ObjectId{2}), object(2));
  EXPECT_EQ(table_.worker_gone(kTwo), All{object(2)});
  EXPECT_EQ(table_.size(), 0u);
}

// Random sizes, orders of answers, and abandoned transfers. Each part is requested once per transfer, and at most the bound plus one part
// is under way.
TEST(ReplicaTableModel, AsksForEachByteOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ReplicaTable table(ReplicaTable::Options{10, 100, 250});
    std::map<Object, std::uint64_t> asked, bytes;
    std::vector<Piece> under_way;
    for (int step = 0; step < 200; ++step) {
      const Object o = object(random() % 5);
      switch (random() % 4) {
        case 0:
          if (!table.wanted(o, kOne)) break;
          bytes[o] = random() % 1000;
          asked[o] = std::min<std::uint64_t>(10, bytes[o]);
          table.begun(o, bytes[o], asked[o], {});
          break;
        case 1:
          if (random() % 5 == 0) table.let_go(o, kOne);
          break;
        default:
          for (const Piece& piece : table.next()) {
            ASSERT_EQ(piece.offset, asked[piece.object]) << "seed " << seed;
            asked[piece.object] += piece.bytes;
            under_way.push_back(piece);
          }
          ASSERT_LT(table.under_way(), 350u);
          if (under_way.empty()) break;
          std::swap(under_way[random() % under_way.size()], under_way.back());
          const Piece piece = under_way.back();
          under_way.pop_back();
          if (table.arrived(piece)) {
            ASSERT_EQ(asked[piece.object], bytes[piece.object]) << "seed " << seed;
          }
      }
    }
    for (const Piece& piece : table.next()) under_way.push_back(piece);
    while (!under_way.empty()) {
      (void)table.arrived(under_way.back());
      under_way.pop_back();
      for (const Piece& piece : table.next()) under_way.push_back(piece);
    }
    ASSERT_EQ(table.under_way(), 0u) << "seed " << seed;
    for (std::uint64_t n = 0; n < 5; ++n) {
      if (table.transfer(object(n))) {
        ASSERT_TRUE(table.complete(object(n))) << "seed " << seed;
      }
    }
  }
}

}  // namespace replica_table_test
}  // namespace shoal::storage
