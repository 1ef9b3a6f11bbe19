#include "scheduler/store/store.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sqlite3.h>

namespace shoal::scheduler {
namespace {

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/shoal-store.XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(StoreTest, RowsAreThereAfterTheStoreWasClosed) {
  {
    auto store = open_sqlite_store(folder_ + "/state.sqlite").value();
    actors::JobRow job;
    job.id = JobId{5};
    job.name = "train.py";
    job.state = actors::JobState::kRunning;
    ASSERT_TRUE(store->put(job));
    job.state = actors::JobState::kFailed;
    job.cause = unavailable("exited with code 3");
    ASSERT_TRUE(store->put(job));
    actors::NodeRow node;
    node.id = NodeId{2};
    node.host = "h";
    ASSERT_TRUE(store->put(node));
  }
  auto store = open_sqlite_store(folder_ + "/state.sqlite").value();
  const auto jobs = store->jobs().value();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].state, actors::JobState::kFailed);
  EXPECT_EQ(jobs[0].cause->message(), "exited with code 3");
  EXPECT_EQ(store->nodes().value().at(0).host, "h");
}

TEST_F(StoreTest, ALockedFileIsUnavailableUntilItIsFree) {
  auto store = open_sqlite_store(folder_ + "/state.sqlite").value();
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/state.sqlite").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  actors::JobRow job;
  job.id = JobId{5};
  EXPECT_EQ(store->put(job).error().code(), Code::kUnavailable);
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(store->put(job));
  sqlite3_close(other);
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsDataLossAndAFolderThatIsNotThereIsNamed) {
  std::ofstream(folder_ + "/bad") << std::string(5000, 'x');
  EXPECT_EQ(open_sqlite_store(folder_ + "/bad").error().code(), Code::kDataLoss);
  const auto absent = open_sqlite_store(folder_ + "/no/state.sqlite");
  EXPECT_NE(absent.error().message().find("/no/state.sqlite"), std::string::npos);
}

}  // namespace
}  // namespace shoal::scheduler
