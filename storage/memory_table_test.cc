#include "storage/memory_table.h"

#include <gtest/gtest.h>

namespace shoal::storage {
namespace {

using runtime::Access;
using runtime::Board;

const JobId kJob{1}, kOther{2};
const WorkerId kWorker{100};

class MemoryTableTest : public testing::Test {
 protected:
  std::uint64_t available_ = 100u << 20;
  MemoryTable table_{{.spare_bytes = 10u << 20, .available_bytes = [this] { return available_; }}};
};

TEST_F(MemoryTableTest, TheFirstToOpenAnArenaMakesItAndTheOthersShareIt) {
  auto a = table_.open(kJob, "unit-0", 4096, kWorker).value();
  auto b = table_.open(kJob, "unit-0", 4096, kWorker).value();
  EXPECT_TRUE(a.created);
  EXPECT_FALSE(b.created);
  const auto x = runtime::map(a.memory, 4096, Access::kReadWrite).value();
  const auto y = runtime::map(b.memory, 4096, Access::kRead).value();
  x.data()[1] = std::byte{5};
  EXPECT_EQ(y.data()[1], std::byte{5});
  EXPECT_TRUE(table_.open(kOther, "unit-0", 8192, kWorker).value().created);  // another job's
  EXPECT_NE(table_.open(kJob, "unit-0", 64, kWorker).error().message().find("same model"), std::string::npos);
  EXPECT_EQ(table_.bytes(), 4096u + 8192u);
}

TEST_F(MemoryTableTest, AnArenaIsForgottenWhenNobodyNeedsItAnyMore) {
  const WorkerId other{101};
  ASSERT_TRUE(table_.open(kJob, "a", 4096, kWorker));
  ASSERT_TRUE(table_.open(kJob, "a", 4096, other));
  table_.drop(kJob, "a", kWorker);
  table_.drop(kJob, "a", kWorker);
  EXPECT_EQ(table_.num_entries(), 1u);
  table_.drop(kJob, "a", other);
  EXPECT_EQ(table_.num_entries(), 0u);
  EXPECT_EQ(table_.bytes(), 0u);
  ASSERT_TRUE(table_.open(kJob, "a", 4096, kWorker));
  ASSERT_TRUE(table_.open(kJob, "a", 4096, other));
  table_.mark_gone(kWorker, "was killed by SIGKILL");
  EXPECT_EQ(table_.num_entries(), 1u);  // the other still needs its rows
  table_.mark_gone(other, "was killed by SIGKILL");
  EXPECT_EQ(table_.num_entries(), 0u);
}

TEST_F(MemoryTableTest, WhatDoesNotFitIsRefusedWithNumbers) {
  EXPECT_TRUE(table_.open(kJob, "a", 80u << 20, kWorker));
  const auto refused = table_.open(kJob, "b", 95u << 20, kWorker);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "OutOfMemory");
  EXPECT_NE(refused.error().message().find("95 MiB"), std::string::npos);
}

TEST_F(MemoryTableTest, WhoeverGetsAnObjectThatFailedHearsOfIt) {
  const ObjectId early{1}, late{2}, refused{3};
  std::vector<std::string> heard;
  const auto got = [&](Result<Fd> r) { heard.push_back(r ? "memory" : r.error().message()); };
  table_.get(kJob, early, kWorker, got);
  EXPECT_FALSE(table_.put(kJob, early, fail(resource_exhausted("no descriptors"))));
  EXPECT_FALSE(table_.put(kJob, late, fail(resource_exhausted("none either"))));
  table_.get(kJob, late, kWorker, got);
  table_.get(kJob, refused, kWorker, got);
  available_ = 0;
  const auto put = table_.put(kJob, refused, runtime::make_memory("test", 4096));
  ASSERT_FALSE(put);
  EXPECT_EQ(heard, (std::vector<std::string>{"no descriptors", "none either", put.error().message()}));
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST_F(MemoryTableTest, ADeathIsWrittenOnEveryBoardOfThatWorker) {
  const auto opened = table_.open(kJob, "control", Board::kBytes + 64, kWorker).value();
  const auto mapping = runtime::map(opened.memory, Board::kBytes, Access::kReadWrite).value();
  ASSERT_TRUE(table_.join_board(kJob, "control", WorkerId{7}, 1));
  ASSERT_TRUE(table_.join_board(kJob, "control", WorkerId{8}, 0));
  table_.mark_gone(WorkerId{7}, "was killed by SIGKILL");
  EXPECT_EQ(Board(mapping.data()).first_gone(2), 1);
  EXPECT_EQ(Board(mapping.data()).cause(1), "was killed by SIGKILL");
  EXPECT_FALSE(table_.join_board(kJob, "none", WorkerId{8}, 0));
}

TEST_F(MemoryTableTest, AnObjectIsGotBeforeOrAfterItIsPut) {
  int got = 0;
  table_.get(kJob, ObjectId{3}, kWorker, [&](Result<Fd> r) { got += r.has_value(); });
  EXPECT_EQ(got, 0);
  ASSERT_TRUE(table_.put(kJob, ObjectId{3}, runtime::make_memory("o", 100).value()));
  EXPECT_EQ(got, 1);
  table_.get(kJob, ObjectId{3}, kWorker, [&](Result<Fd> r) { got += r.has_value(); });
  EXPECT_EQ(got, 2);
  EXPECT_FALSE(table_.put(kJob, ObjectId{3}, runtime::make_memory("o", 100).value()));
}

TEST_F(MemoryTableTest, WhoeverWaitsForAnObjectOfADeadProcessIsTold) {
  std::vector<std::string> reasons;
  table_.get(kJob, ObjectId{1}, kWorker, [&](Result<Fd> r) { reasons.push_back(r ? "" : r.error().reason()); });
  table_.get(kJob, ObjectId{2}, WorkerId{101}, [&](Result<Fd> r) { reasons.push_back(r ? "" : r.error().reason()); });
  table_.mark_gone(kWorker, "killed by SIGKILL");
  EXPECT_EQ(reasons, std::vector<std::string>{"OwnerDied"});  // the other one's owner lives
}

TEST_F(MemoryTableTest, AJobsEndFreesAllOfItAndAnswersWhoeverWaits) {
  ASSERT_TRUE(table_.open(kJob, "a", 4096, kWorker));
  ASSERT_TRUE(table_.open(kOther, "a", 4096, kWorker));
  ASSERT_TRUE(table_.put(kJob, ObjectId{3}, runtime::make_memory("o", 100).value()));
  std::string error;
  table_.get(kJob, ObjectId{4}, kWorker, [&](Result<Fd> r) { error = r.error().reason(); });
  table_.end_job(kJob);
  EXPECT_EQ(error, "JobEnded");
  EXPECT_EQ(table_.bytes(), 4096u);
  EXPECT_EQ(table_.num_entries(), 1u);
}

TEST_F(MemoryTableTest, WhatComesAfterAJobsEndIsRefused) {
  table_.end_job(kJob);
  table_.end_job(kJob);  // a node that was away hears it again
  EXPECT_EQ(table_.put(kJob, ObjectId{3}, runtime::make_memory("o", 100).value()).error().reason(), "JobEnded");
  EXPECT_EQ(table_.open(kJob, "a", 4096, kWorker).error().reason(), "JobEnded");
  std::string error;
  table_.get(kJob, ObjectId{3}, kWorker, [&](Result<Fd> r) { error = r.error().reason(); });
  EXPECT_EQ(error, "JobEnded");
  EXPECT_EQ(table_.num_entries(), 0u);
  EXPECT_TRUE(table_.put(kOther, ObjectId{3}, runtime::make_memory("o", 100).value()));
}

}  // namespace
}  // namespace shoal::storage
