#include "scheduler/store/store.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sqlite3.h>

namespace shoal::scheduler {
namespace {

Record row(TableName table, std::uint64_t id, const std::string& text) { return {table, id, "name", "ALIVE", Bytes::copy_of(text)}; }

Record gone(TableName table, std::uint64_t id) { return {table, id, {}, {}, {}}; }

template <class... Rows>
Result<void> commit(Store& store, Rows... rows) {
  std::vector<Record> records;
  (records.push_back(std::move(rows)), ...);
  Result<void> out = fail(internal("done was not called"));
  store.commit(records, [&](Result<void> r) { out = std::move(r); });
  return out;
}

std::string all(Store& store) {
  std::string out;
  const auto records = store.load();
  if (!records) return records.error().message();
  for (const auto& r : *records)
    out += std::string(to_string(r.table)) + "/" + std::to_string(r.id) + "=" + std::string(r.bytes.view()) + " ";
  return out;
}

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/shoal-store.XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Store> open(bool fsync = false) { return open_sqlite_store(folder_ + "/state.sqlite", {.fsync = fsync}).value(); }
  std::string folder_;
};

TEST_F(StoreTest, AColumnWithoutAValueIsEmpty) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/state.sqlite").c_str(), &db), SQLITE_OK);
  const char* const made_elsewhere =
      "CREATE TABLE jobs(id INTEGER PRIMARY KEY, name TEXT, state TEXT, record BLOB); INSERT INTO jobs VALUES(5, NULL, NULL, NULL);";
  EXPECT_EQ(sqlite3_exec(db, made_elsewhere, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_EQ(all(*open()), "jobs/5= ");
}

TEST_F(StoreTest, RowsAreThereAfterTheStoreWasClosed) {
  for (const bool fsync : {false, true}) {
    {
      auto store = open(fsync);
      ASSERT_TRUE(commit(*store, row(TableName::kJobs, 5, "a"), row(TableName::kNodes, ~0ull, "node"), row(TableName::kJobs, 6, "b")));
      ASSERT_TRUE(commit(*store, row(TableName::kJobs, 5, "c"), gone(TableName::kJobs, 6)));
    }
    EXPECT_EQ(all(*open(fsync)), "nodes/18446744073709551615=node jobs/5=c ");
  }
}

TEST_F(StoreTest, MemoryKeepsTheSame) {
  const auto store = make_memory_store();
  ASSERT_TRUE(commit(*store, row(TableName::kJobs, 5, "a"), row(TableName::kNodes, 7, "node"), row(TableName::kJobs, 6, "b")));
  ASSERT_TRUE(commit(*store, row(TableName::kJobs, 5, "c"), gone(TableName::kJobs, 6)));
  EXPECT_EQ(all(*store), "nodes/7=node jobs/5=c ");
}

TEST_F(StoreTest, ALockedFileIsUnavailableUntilItIsFreeAndTakesAllOrNothing) {
  auto store = open();
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/state.sqlite").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(commit(*store, row(TableName::kJobs, 5, "a")).error().code(), Code::kUnavailable);
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(commit(*store, row(TableName::kJobs, 5, "a")));
  sqlite3_close(other);
  EXPECT_EQ(all(*store), "jobs/5=a ");
}

TEST_F(StoreTest, AFullDiskKeepsNothingOfTheCommitThatDidNotFit) {
  auto store = open();
  ASSERT_TRUE(commit(*store, row(TableName::kJobs, 1, "small")));
  const std::string big(1 << 20, 'x');
  // RLIMIT_FSIZE stands for a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{256 << 10, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto refused = commit(*store, row(TableName::kJobs, 2, "first"), row(TableName::kJobs, 3, big));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(refused);
  EXPECT_EQ(all(*store), "jobs/1=small ");
  EXPECT_TRUE(commit(*store, row(TableName::kJobs, 4, "later")));
  EXPECT_EQ(all(*store), "jobs/1=small jobs/4=later ");
}

// The sequence number in the log's header.
std::uint32_t number_of_log(const std::string& path) {
  std::ifstream log(path + "-wal");
  std::array<unsigned char, 16> header{};
  log.read(reinterpret_cast<char*>(header.data()), header.size());
  return std::uint32_t{header[12]} << 24 | std::uint32_t{header[13]} << 16 | std::uint32_t{header[14]} << 8 | header[15];
}

// Distinct texts, as SQLite does not write what is there already.
std::string text_of(std::uint64_t i) { return std::to_string(i) + std::string(500, 'x'); }

std::uint64_t log_bytes(const std::string& path) { return std::filesystem::file_size(path + "-wal"); }

TEST_F(StoreTest, TheLogRestartsDuringContinuousCommits) {
  const std::string path = folder_ + "/state.sqlite";
  const auto store =
      open_sqlite_store(path, {.sync_every_ms = 5, .log_bytes = 256 << 10, .most_log_bytes = std::uint64_t{1} << 40}).value();
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::uint64_t i = 0;
  do {
    const std::string text = text_of(i) + std::string(8000, 'x');
    ASSERT_TRUE(commit(*store, row(TableName::kActors, i % 1000, text), row(TableName::kGangs, i % 1000, text)));
    ++i;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // less than a copy takes
  } while (number_of_log(path) < 6 && std::chrono::steady_clock::now() < end);
  EXPECT_GE(number_of_log(path), 6u) << log_bytes(path);
  EXPECT_EQ(store->load()->size(), 2 * std::min<std::uint64_t>(i, 1000));
}

TEST_F(StoreTest, TheLogIsBoundedWithoutACheckpointThread) {
  const std::string path = folder_ + "/state.sqlite";
  const auto store = open_sqlite_store(path, {.sync_every_ms = 3'600'000, .log_bytes = 128 << 10, .most_log_bytes = 512 << 10}).value();
  for (std::uint64_t i = 0; i < 2000; ++i) {
    ASSERT_TRUE(commit(*store, row(TableName::kActors, i % 100, text_of(i))));
    ASSERT_LT(log_bytes(path), 700u << 10);
  }
  EXPECT_GT(number_of_log(path), 1u);
}

TEST_F(StoreTest, ACommitThatHasToWaitDoesSoBesideTheLoop) {
  const std::string path = folder_ + "/state.sqlite";
  std::vector<std::pair<std::function<void()>, std::function<void()>>> beside;
  SqliteOptions options{.sync_every_ms = 3'600'000, .log_bytes = 128 << 10, .most_log_bytes = 512 << 10};
  options.aside = [&](auto work, auto then) { beside.emplace_back(std::move(work), std::move(then)); };
  const auto store = open_sqlite_store(path, options).value();
  for (std::uint64_t i = 0; beside.empty() && i < 5000; ++i) {
    bool done = false;
    std::vector<Record> records;
    records.push_back(row(TableName::kActors, i % 100, text_of(i)));
    store->commit(records, [&](Result<void> r) { done = r.has_value(); });
    ASSERT_EQ(done, beside.empty());
    if (done) continue;
    EXPECT_GE(log_bytes(path), 512u << 10);
    const auto before = number_of_log(path);
    beside[0].first();
    EXPECT_FALSE(done);
    beside[0].second();
    EXPECT_TRUE(done);
    EXPECT_EQ(number_of_log(path), before + 1);
  }
  EXPECT_TRUE(commit(*store, row(TableName::kJobs, 1, "next")));
  EXPECT_EQ(beside.size(), 1u);
}

TEST_F(StoreTest, AFullLogIsRestarted) {
  const std::string path = folder_ + "/state.sqlite";
  const auto store = open_sqlite_store(path, {.sync_every_ms = 50}).value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  int refused = 0, taken_after = 0;
  for (std::uint64_t i = 0; taken_after == 0 && std::chrono::steady_clock::now() < end; ++i) {
    if (!commit(*store, row(TableName::kActors, i % 100, text_of(i)))) {
      ++refused;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (refused > 0) {
      ++taken_after;
    }
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(taken_after, 1);
}

// A SIGKILL at any moment loses no commit whose `done` was called.
TEST_F(StoreTest, CommittedRowsSurviveTheProcess) {
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto store = open_sqlite_store(folder_ + "/state.sqlite").value();
    for (std::uint64_t i = 1;; ++i) {
      if (!commit(*store, row(TableName::kActors, i, "a"), row(TableName::kGangs, i, "g"))) _exit(1);
      if (write(said[1], &i, sizeof i) != sizeof i) _exit(2);
    }
  }
  close(said[1]);
  std::uint64_t last = 0;
  while (last < 500) ASSERT_EQ(read(said[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
  kill(child, SIGKILL);
  while (read(said[0], &last, sizeof last) == static_cast<ssize_t>(sizeof last)) {
  }
  close(said[0]);
  waitpid(child, nullptr, 0);
  std::size_t num_actors = 0, num_gangs = 0;
  const auto records = open()->load().value();
  for (const auto& r : records) {
    num_actors += r.table == TableName::kActors;
    num_gangs += r.table == TableName::kGangs;
  }
  EXPECT_GE(num_actors, last);
  EXPECT_LE(num_actors, last + 1);
  EXPECT_EQ(num_actors, num_gangs);
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsDataLossAndAFolderThatIsNotThereIsNamed) {
  std::ofstream(folder_ + "/bad") << std::string(5000, 'x');
  EXPECT_EQ(open_sqlite_store(folder_ + "/bad").error().code(), Code::kDataLoss);
  const auto absent = open_sqlite_store(folder_ + "/no/state.sqlite");
  EXPECT_NE(absent.error().message().find("/no/state.sqlite"), std::string::npos);
}

TEST_F(StoreTest, ADatabaseOfAnotherVersionIsRefused) {
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/state.sqlite").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT); INSERT INTO meta VALUES('schema', '1')", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(other);
  const auto opened = open_sqlite_store(folder_ + "/state.sqlite");
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message().find("another version"), std::string::npos);
}

}  // namespace
}  // namespace shoal::scheduler
