#include "storage/reference_table.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace shoal::storage {
namespace reference_table_test {

using Object = ReferenceTable::Object;
using Freed = ReferenceTable::Freed;

constexpr JobId kJob{1}, kOther{2};
constexpr WorkerId kOwner{11}, kBorrower{12}, kThird{13};

Object object(std::uint64_t n, JobId job = kJob) { return {job, ObjectId{n}}; }

class ReferenceTableTest : public testing::Test {
 protected:
  ReferenceTable table_;
};

TEST_F(ReferenceTableTest, IsFreedWithTheLastOfItsHolders) {
  EXPECT_EQ(table_.count(object(1), kOwner, 1), Freed());
  EXPECT_EQ(table_.count(object(1), kBorrower, 2), Freed());
  EXPECT_EQ(table_.count(object(1), kOwner, -1), Freed());
  EXPECT_EQ(table_.holders(object(1)), std::vector{kBorrower});
  EXPECT_EQ(table_.count(object(1), kBorrower, -2), Freed{object(1)});
  EXPECT_EQ(table_.num_entries(), 0u);
}

TEST_F(ReferenceTableTest, ARemovalBeforeItsAdditionFreesNothing) {
  EXPECT_EQ(table_.count(object(1), kBorrower, -1), Freed());  // arrives before the increment, over another connection
  EXPECT_EQ(table_.count(object(1), kOwner, 1), Freed());
  EXPECT_EQ(table_.count(object(1), kBorrower, 1), Freed());
  EXPECT_EQ(table_.count(object(1), kOwner, -1), Freed{object(1)});
}

TEST_F(ReferenceTableTest, AProcessThatEndsHoldsNothing) {
  table_.count(object(1), kOwner, 1);
  table_.count(object(2), kOwner, 1);
  table_.count(object(2), kBorrower, 1);
  table_.count(object(3), kOwner, -1);
  EXPECT_EQ(table_.worker_gone(kOwner), Freed{object(1)});
  EXPECT_EQ(table_.worker_gone(kBorrower), Freed{object(2)});
  EXPECT_EQ(table_.num_entries(), 0u);
}

TEST_F(ReferenceTableTest, ContainedObjectsLiveWithTheirContainer) {
  table_.count(object(1), kOwner, 1);
  table_.count(object(2), kOwner, 1);
  table_.count(object(3), kOwner, 1);
  table_.contain(object(2), {object(1)});
  table_.contain(object(3), {object(2), object(1)});
  EXPECT_EQ(table_.count(object(1), kOwner, -1), Freed());
  EXPECT_EQ(table_.count(object(2), kOwner, -1), Freed());
  EXPECT_EQ(table_.contained(object(3)), (std::vector{object(2), object(1)}));
  EXPECT_EQ(table_.count(object(3), kOwner, -1), (Freed{object(3), object(2), object(1)}));
  EXPECT_EQ(table_.num_entries(), 0u);
}

TEST_F(ReferenceTableTest, ALongChainIsFreedAtOnce) {
  constexpr std::uint64_t kLength = 100'000;
  table_.count(object(0), kOwner, 1);
  for (std::uint64_t n = 1; n < kLength; ++n) table_.contain(object(n - 1), {object(n)});
  EXPECT_EQ(table_.count(object(0), kOwner, -1).size(), kLength);
}

TEST_F(ReferenceTableTest, ADroppedObjectReleasesItsContents) {
  table_.count(object(1), kOwner, 1);
  table_.contain(object(2), {object(1)});
  table_.count(object(1), kOwner, -1);
  EXPECT_EQ(table_.drop(object(2)), Freed{object(1)});
}

TEST_F(ReferenceTableTest, AJobEndsWithItsObjectsAndNotWithThoseOfOthers) {
  table_.count(object(1), kOwner, 1);
  table_.count(object(1, kOther), kThird, 1);
  table_.count(object(2, kOther), kThird, 1);
  table_.contain(object(1), {object(1, kOther), object(2, kOther)});
  table_.count(object(2, kOther), kThird, -1);
  EXPECT_EQ(table_.end_job(kJob), Freed{object(2, kOther)});
  EXPECT_EQ(table_.num_entries(), 1u);
  EXPECT_EQ(table_.count(object(1, kOther), kThird, -1), Freed{object(1, kOther)});
}

TEST_F(ReferenceTableTest, BeyondItsBoundNothingIsCountedAndNothingFreed) {
  ReferenceTable small(2);
  for (std::uint64_t n = 0; n < 3; ++n) small.count(object(n), kOwner, 1);
  EXPECT_EQ(small.num_entries(), 2u);
  EXPECT_EQ(small.count(object(2), kOwner, -1), Freed());
}

TEST_F(ReferenceTableTest, AnObjectIsRefusedWithItsContentsIfTheyDoNotFit) {
  ReferenceTable small(3);
  small.count(object(1), kOwner, 1);
  small.count(object(2), kOwner, 1);
  EXPECT_EQ(small.contain(object(10), {object(1), object(3), object(4), object(4)}).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(small.num_entries(), 2u);
  EXPECT_EQ(small.contained(object(10)), Freed());
  EXPECT_EQ(small.count(object(1), kOwner, -1), Freed{object(1)});  // nothing contains it
  EXPECT_TRUE(small.contain(object(10), {object(2), object(3), object(4), object(4)}));
  EXPECT_EQ(small.num_entries(), 3u);
  EXPECT_TRUE(small.contain(object(11), {object(3)}));  // object 3 has an entry already
  EXPECT_TRUE(small.contain(object(12), {object(2), object(4)}));
  EXPECT_EQ(small.contain(object(13), {object(2)}).error().code(), Code::kResourceExhausted);  // a fourth object that contains others
  EXPECT_TRUE(small.contain(object(12), {object(2), object(4)}));                              // object 12 again
  EXPECT_EQ(small.drop(object(10)), Freed());
  EXPECT_EQ(small.drop(object(11)), Freed{object(3)});
}

TEST_F(ReferenceTableTest, AnObjectOfWhichACountWasRefusedIsNeverFreed) {
  ReferenceTable small(1);
  small.count(object(1), kOwner, 1);
  small.count(object(2), kOwner, 1);  // no room
  EXPECT_EQ(small.count(object(1), kOwner, -1), Freed{object(1)});
  EXPECT_EQ(small.count(object(2), kBorrower, 1), Freed());
  EXPECT_EQ(small.count(object(2), kBorrower, -1), Freed());  // its owner still holds it
  EXPECT_TRUE(small.contain(object(3), {object(2)}));
  EXPECT_EQ(small.drop(object(3)), Freed());
  small.end_job(kJob);
  small.count(object(2), kOwner, 1);
  EXPECT_EQ(small.num_entries(), 1u);
}

// Processes pass references on over separate connections, in any interleaving, and die. An object is freed exactly when no reference is
// held or under way.
TEST(ReferenceTableModel, FreesUnreferencedObjectsOnly) {
  constexpr std::size_t kProcesses = 4;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    ReferenceTable table;
    struct Said {
      WorkerId holder;
      std::int64_t change;
    };
    struct Process {
      std::int64_t held = 0, counted = 0;
      std::vector<Said> unsent;  // to the table, in the order of the calls
      bool dead = false;
    };
    std::vector<Process> all(kProcesses);
    const auto id = [](std::size_t p) { return WorkerId{p + 1}; };
    bool freed = false;
    const auto deliver = [&](std::size_t p) {
      const Said said = all[p].unsent.front();
      all[p].unsent.erase(all[p].unsent.begin());
      freed |= !table.count(object(1), said.holder, said.change).empty();
    };
    all[0].held = all[0].counted = 1;
    all[0].unsent.push_back({id(0), 1});
    for (int step = 0; step < 60; ++step) {
      const std::size_t p = random() % kProcesses, q = random() % kProcesses;
      Process& one = all[p];
      switch (random() % 4) {
        case 0:  // passes a reference on, which arrives before the table's counts
          if (one.held == 0 || all[q].dead) break;
          one.unsent.push_back({id(q), 1});
          ++all[q].held;
          ++all[q].counted;
          break;
        case 1:
          if (one.held == 0 || --one.held > 0) break;
          one.unsent.push_back({id(p), -one.counted});
          one.counted = 0;
          break;
        default:
          if (!one.unsent.empty()) deliver(p);
      }
      const bool somebody = std::any_of(all.begin(), all.end(), [](const Process& x) { return x.held > 0; });
      ASSERT_FALSE(freed && somebody) << "seed " << seed << " step " << step;
    }
    for (std::size_t p = 0; p < kProcesses; ++p) {
      while (!all[p].unsent.empty()) deliver(p);
    }
    for (std::size_t p = 0; p < kProcesses; ++p) {
      if (all[p].held > 0) {
        ASSERT_FALSE(freed) << "seed " << seed;
        freed |= !table.worker_gone(id(p)).empty();
      }
    }
    ASSERT_TRUE(freed) << "seed " << seed;
    ASSERT_EQ(table.num_entries(), 0u) << "seed " << seed;
  }
}

}  // namespace reference_table_test
}  // namespace shoal::storage
