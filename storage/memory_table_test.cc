#include "storage/memory_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "runtime/shm/readers.h"

namespace shoal::storage {
namespace {

using runtime::Access;
using runtime::MembershipPage;

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
  EXPECT_TRUE(table_.open(kOther, "unit-0", 8192, kWorker).value().created);  // for another job
  EXPECT_NE(table_.open(kJob, "unit-0", 64, kWorker).error().message().find("same model"), std::string::npos);
  EXPECT_EQ(table_.bytes(), 4096u + 8192u);
}

TEST_F(MemoryTableTest, AnUnusedArenaIsDropped) {
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
  EXPECT_EQ(table_.num_entries(), 1u);  // still held by the other worker
  table_.mark_gone(other, "was killed by SIGKILL");
  EXPECT_EQ(table_.num_entries(), 0u);
}

TEST_F(MemoryTableTest, ALastingArenaOutlivesItsHoldersAndEndsWithADropOrTheJob) {
  const WorkerId other{101}, newcomer{102};
  {
    auto opened = table_.open(kJob, "record", 4096, kWorker).value();
    runtime::map(opened.memory, 4096, Access::kReadWrite).value().data()[7] = std::byte{9};
  }
  ASSERT_TRUE(table_.open(kJob, "record", 4096, other, /*lasting=*/true));
  table_.mark_gone(kWorker, "was killed by SIGKILL");
  table_.mark_gone(other, "was killed by SIGKILL");
  EXPECT_EQ(table_.bytes(), 4096u);
  auto found = table_.open(kJob, "record", MemoryTable::kAsItIs, newcomer).value();
  EXPECT_FALSE(found.created);
  EXPECT_EQ(runtime::map(found.memory, 4096, Access::kRead).value().data()[7], std::byte{9});
  table_.drop(kJob, "record", newcomer);
  EXPECT_EQ(table_.num_entries(), 0u);
  EXPECT_EQ(table_.open(kJob, "record", MemoryTable::kAsItIs, newcomer).error().code(), Code::kNotFound);
  ASSERT_TRUE(table_.open(kJob, "record", 4096, other, /*lasting=*/true));
  table_.mark_gone(other, "was killed by SIGKILL");
  table_.drop(kJob, "record", newcomer);  // a process that never opened it may free what only dead ones held
  EXPECT_EQ(table_.num_entries(), 0u);
  ASSERT_TRUE(table_.open(kJob, "record", 4096, other, /*lasting=*/true));
  table_.mark_gone(other, "was killed by SIGKILL");
  table_.end_job(kJob);
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST_F(MemoryTableTest, LastingArenasOfAGroupEndWithTheLastWorkerThatHasOpenedOne) {
  const WorkerId other{101}, reader{102};
  ASSERT_TRUE(table_.open(kJob, "a//record-0", 4096, kWorker, /*lasting=*/true));
  ASSERT_TRUE(table_.open(kJob, "a//record-1", 4096, other, /*lasting=*/true));
  ASSERT_TRUE(table_.open(kJob, "b//record", 4096, other, /*lasting=*/true));
  ASSERT_TRUE(table_.open(JobId{9}, "a//record", 4096, other, /*lasting=*/true));
  table_.mark_gone(kWorker, "was killed by SIGKILL");
  EXPECT_TRUE(table_.open(kJob, "a//record-0", MemoryTable::kAsItIs, other));  // the other worker may adopt it
  table_.drop(kJob, "a//record-1", other);
  EXPECT_FALSE(table_.open(kJob, "a//record-1", MemoryTable::kAsItIs, other));
  ASSERT_TRUE(table_.open(kJob, "b//record", MemoryTable::kAsItIs, reader));
  table_.mark_gone(other, "was killed by SIGKILL");
  EXPECT_FALSE(table_.open(kJob, "a//record-0", MemoryTable::kAsItIs, other));
  EXPECT_EQ(table_.bytes(), 4096u);  // the reader, which is not of the group, has it open
  table_.mark_gone(reader, "was killed by SIGKILL");
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST_F(MemoryTableTest, AnObjectIsTakenHoweverLittleIsLeftAsItsPagesAreThere) {
  available_ = 1u << 20;
  EXPECT_FALSE(table_.open(kJob, "a", 4096, kWorker));
  const ObjectId id{5};
  ASSERT_TRUE(table_.put(kJob, id, runtime::make_memory("object", 4096)));
  std::optional<Result<Fd>> got;
  table_.get(kJob, id, kWorker, [&](Result<Fd> r) { got = std::move(r); });
  ASSERT_TRUE(got);
  EXPECT_TRUE(*got);
}

TEST_F(MemoryTableTest, AnArenaWithoutRoomIsRefusedWithNumbers) {
  EXPECT_TRUE(table_.open(kJob, "a", 80u << 20, kWorker));
  const auto refused = table_.open(kJob, "b", 95u << 20, kWorker);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "OutOfMemory");
  EXPECT_NE(refused.error().message().find("95 MiB"), std::string::npos);
}

TEST_F(MemoryTableTest, AGetOfAFailedObjectFails) {
  const ObjectId early{1}, late{2}, refused{3};
  std::vector<std::string> received;
  const auto got = [&](Result<Fd> r) { received.push_back(r ? "memory" : r.error().message()); };
  table_.get(kJob, early, kWorker, got);
  EXPECT_FALSE(table_.put(kJob, early, fail(resource_exhausted("no descriptors"))));
  EXPECT_FALSE(table_.put(kJob, late, fail(resource_exhausted("none either"))));
  table_.get(kJob, late, kWorker, got);
  table_.get(kJob, refused, kWorker, got);
  const auto put = table_.put(kJob, refused, Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)));  // not a memory
  ASSERT_FALSE(put);
  EXPECT_EQ(received, (std::vector<std::string>{"no descriptors", "none either", put.error().message()}));
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST_F(MemoryTableTest, ADeathIsWrittenOnEveryBoardOfThatWorker) {
  const auto opened = table_.open(kJob, "control", MembershipPage::kBytes + 64, kWorker).value();
  const auto mapping = runtime::map(opened.memory, MembershipPage::kBytes, Access::kReadWrite).value();
  ASSERT_TRUE(table_.join_membership_page(kJob, "control", WorkerId{7}, 1));
  ASSERT_TRUE(table_.join_membership_page(kJob, "control", WorkerId{8}, 0));
  table_.mark_gone(WorkerId{7}, "was killed by SIGKILL");
  EXPECT_EQ(MembershipPage(mapping.data()).first_gone(2), 1);
  EXPECT_EQ(MembershipPage(mapping.data()).cause(1), "was killed by SIGKILL");
  EXPECT_FALSE(table_.join_membership_page(kJob, "none", WorkerId{8}, 0));
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

TEST_F(MemoryTableTest, AWaiterForAnObjectOfADeadProcessFails) {
  std::vector<std::string> reasons;
  table_.get(kJob, ObjectId{1}, kWorker, [&](Result<Fd> r) { reasons.push_back(r ? "" : r.error().reason()); });
  table_.get(kJob, ObjectId{2}, WorkerId{101}, [&](Result<Fd> r) { reasons.push_back(r ? "" : r.error().reason()); });
  table_.mark_gone(kWorker, "killed by SIGKILL");
  EXPECT_EQ(reasons, std::vector<std::string>{"OwnerDied"});  // the other object's owner lives
}

TEST_F(MemoryTableTest, AJobsEndFreesItsMemoryAndAnswersItsWaiters) {
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

TEST_F(MemoryTableTest, RequestsAfterAJobsEndAreRefused) {
  table_.end_job(kJob);
  table_.end_job(kJob);  // repeated after a reconnect
  EXPECT_EQ(table_.put(kJob, ObjectId{3}, runtime::make_memory("o", 100).value()).error().reason(), "JobEnded");
  EXPECT_EQ(table_.open(kJob, "a", 4096, kWorker).error().reason(), "JobEnded");
  std::string error;
  table_.get(kJob, ObjectId{3}, kWorker, [&](Result<Fd> r) { error = r.error().reason(); });
  EXPECT_EQ(error, "JobEnded");
  EXPECT_EQ(table_.num_entries(), 0u);
  EXPECT_TRUE(table_.put(kOther, ObjectId{3}, runtime::make_memory("o", 100).value()));
}

class MovableTest : public testing::Test {
 protected:
  static constexpr std::size_t kLarge = 1 << 20;
  // Moves all idle objects one by one, and returns their ids.
  std::vector<std::uint64_t> idle(std::size_t looks = 100) {
    std::vector<std::uint64_t> out;
    while (const auto object = table_.next_idle(looks)) {
      out.push_back(object->id.value);
      EXPECT_EQ(object->bytes, kLarge);
      EXPECT_TRUE(table_.move_idle(kJob, object->id, file()));
    }
    return out;
  }
  // Puts an object with a reader's file, as processes do.
  Fd put(std::uint64_t id, WorkerId maker = kWorker, std::size_t bytes = kLarge) {
    const Fd memory = runtime::make_memory("o", bytes).value();
    Fd reader = runtime::reader_of(memory).value();
    EXPECT_TRUE(table_.put(kJob, ObjectId{id}, runtime::duplicate(reader), maker));
    return reader;
  }
  Fd get(std::uint64_t id) {
    Fd out;
    table_.get(kJob, ObjectId{id}, kWorker, [&](Result<Fd> r) { out = std::move(r).value(); });
    return out;
  }
  static Fd file(std::size_t bytes = kLarge, int flags = O_RDONLY) {
    std::string name = testing::TempDir() + "/moved-XXXXXX";
    const Fd out(mkostemp(name.data(), O_CLOEXEC));
    EXPECT_EQ(ftruncate(out.get(), static_cast<off_t>(bytes)), 0);
    Fd again(open(name.c_str(), flags | O_CLOEXEC));
    unlink(name.c_str());
    return again;
  }
  bool move(std::uint64_t id, Fd to) { return table_.move(kJob, ObjectId{id}, std::move(to)).has_value(); }
  bool in_memory(std::uint64_t id) { return runtime::is_memory(get(id)); }
  MemoryTable table_{{.spare_bytes = 0, .available_bytes = {}}};
};

TEST_F(MovableTest, IdleMemoryIsDistinguishedFromReadMemory) {
  Fd first = put(1), second = put(2);
  std::size_t looks = 100;
  EXPECT_FALSE(table_.next_idle(looks));
  EXPECT_EQ(looks, 0u);
  first.reset();
  {
    const auto reader = get(1);
    EXPECT_FALSE(table_.next_idle(looks = 100));
    const auto mapping = runtime::map(reader, kLarge, Access::kRead).value();
    EXPECT_EQ(mapping.size(), kLarge);
  }
  EXPECT_EQ(idle(), std::vector<std::uint64_t>{1});
  second.reset();
  EXPECT_EQ(idle(), std::vector<std::uint64_t>{2});
  EXPECT_FALSE(in_memory(1));
}

TEST_F(MovableTest, IdleMemoryIsNotMovedOnceReadOrFreed) {
  put(1);
  put(2);
  const auto reader = get(1);
  EXPECT_FALSE(table_.move_idle(kJob, ObjectId{1}, file()));
  EXPECT_TRUE(in_memory(1));
  table_.free(kJob, ObjectId{2});
  EXPECT_FALSE(table_.move_idle(kJob, ObjectId{2}, file()));
  EXPECT_EQ(table_.filed_bytes(), 0u);
}

TEST_F(MovableTest, SmallOnesAndThoseInFilesAreNotMoved) {
  put(1, kWorker, 4096);
  put(2);
  EXPECT_TRUE(move(2, file()));
  EXPECT_FALSE(in_memory(2));
  EXPECT_TRUE(move(3, file()));  // an absent object
  EXPECT_FALSE(table_.has(kJob, ObjectId{3}));
  EXPECT_TRUE(idle().empty());
}

TEST_F(MovableTest, OnlyAFileOfTheSameSizeReplacesAnObject) {
  put(1);
  EXPECT_FALSE(move(1, file(kLarge - 1)));
  EXPECT_FALSE(move(1, file(kLarge + 1)));
  EXPECT_FALSE(move(1, file(kLarge, O_RDWR)));                       // writable, so the sender could truncate it
  EXPECT_FALSE(move(1, runtime::make_memory("o", kLarge).value()));  // not a file
  EXPECT_FALSE(move(1, Fd(open("/tmp", O_RDONLY | O_CLOEXEC))));
  EXPECT_FALSE(move(1, Fd(open("/dev/zero", O_RDONLY | O_CLOEXEC))));
  EXPECT_TRUE(in_memory(1));
  EXPECT_TRUE(move(1, file()));
  EXPECT_FALSE(in_memory(1));
}

TEST_F(MovableTest, EachLookExaminesSomeAndAllInTurn) {
  std::vector<Fd> read;
  for (std::uint64_t id = 1; id <= 5; ++id) read.push_back(put(id));
  put(6);
  EXPECT_TRUE(idle(3).empty());  // the checks go to objects 1 to 3
  EXPECT_EQ(idle(3), std::vector<std::uint64_t>{6});
}

TEST_F(MovableTest, MovedObjectsAreCountedUntilFreed) {
  for (std::uint64_t id = 1; id <= 3; ++id) put(id);
  EXPECT_EQ(idle().size(), 3u);
  EXPECT_EQ(table_.filed_bytes(), 3 * kLarge);
  table_.free(kJob, ObjectId{1});
  table_.drop(kJob, ObjectId{2});
  EXPECT_EQ(table_.filed_bytes(), kLarge);
  table_.end_job(kJob);
  EXPECT_EQ(table_.filed_bytes(), 0u);
}

TEST_F(MovableTest, ADeadProcessesObjectsAreCountedUntilMovedOrFreed) {
  for (std::uint64_t id = 1; id <= 4; ++id) put(id);
  put(5, WorkerId{101});
  put(6, kWorker, 4096);
  EXPECT_EQ(table_.orphaned_bytes(), 0u);
  table_.mark_gone(kWorker, "killed");
  EXPECT_EQ(table_.orphaned_bytes(), 4 * kLarge);
  EXPECT_TRUE(move(1, file()));
  table_.drop(kJob, ObjectId{2});
  table_.free(kJob, ObjectId{3});
  EXPECT_EQ(table_.orphaned_bytes(), kLarge);
  put(7, WorkerId());  // maker already gone
  EXPECT_EQ(table_.orphaned_bytes(), 2 * kLarge);
  table_.end_job(kJob);
  EXPECT_EQ(table_.orphaned_bytes(), 0u);
}

TEST_F(MovableTest, ObjectsCountedByAnotherProcessAreNotMoved) {
  const Fd memory = runtime::make_memory("o", kLarge).value();
  ASSERT_TRUE(table_.put(kJob, ObjectId{1}, runtime::reader_of(memory)));
  table_.mark_gone(kWorker, "killed");
  EXPECT_TRUE(idle().empty());
  EXPECT_EQ(table_.orphaned_bytes(), 0u);
}

TEST_F(MemoryTableTest, FreedObjectsAreNotAccepted) {
  const auto put = [&](JobId job, std::uint64_t id) { return table_.put(job, ObjectId{id}, runtime::make_memory("o", 100)).has_value(); };
  std::string reason;
  table_.get(kJob, ObjectId{30}, kWorker, [&](Result<Fd> r) { reason = r ? "" : r.error().reason(); });
  ASSERT_TRUE(put(kJob, 10));
  for (const std::uint64_t id : {10u, 11u, 30u}) table_.free(kJob, ObjectId{id});  // also before the put
  EXPECT_EQ(reason, "ObjectFreed");
  for (std::uint64_t id = 9; id < 13; ++id) ASSERT_TRUE(put(kJob, id));
  ASSERT_TRUE(put(kOther, 10));
  EXPECT_EQ(table_.num_entries(), 3u);
  for (const auto& [job, id] : {std::pair(kJob, 9u), std::pair(kJob, 12u), std::pair(kOther, 10u)})
    EXPECT_TRUE(table_.has(job, ObjectId{id}));
}

TEST(MemoryTableBoundsTest, OneProcessHoldsSoManyArenasAndTheNodeHasSoMany) {
  MemoryTable table({.spare_bytes = 0, .max_arenas = 3, .min_arenas_of_worker = 2, .available_bytes = {}});
  const WorkerId other{101};
  const auto reason = [&](const char* key, WorkerId worker, JobId job = kJob) {
    const auto opened = table.open(job, key, 4096, worker);
    return opened ? std::string() : opened.error().reason();
  };
  EXPECT_EQ(reason("a", kWorker), "");
  EXPECT_EQ(reason("b", kWorker, kOther), "");
  EXPECT_EQ(reason("c", kWorker), "TooManyArenas");
  EXPECT_EQ(reason("a", kWorker), "TooManyArenas");  // one that exists counts as well
  EXPECT_EQ(reason("c", other), "");
  EXPECT_EQ(reason("d", other), "TooManyArenas");  // no process may open a fourth arena
  table.end_job(kOther);
  EXPECT_EQ(reason("d", kWorker), "");
  table.drop(kJob, "a", kWorker);
  EXPECT_EQ(reason("e", kWorker), "");
  EXPECT_EQ(reason("c", kWorker), "TooManyArenas");
  table.mark_gone(kWorker, "was killed by SIGKILL");
  EXPECT_EQ(reason("c", kWorker), "");
}

TEST(MemoryTableBoundsTest, AProcessWithMuchMemoryHoldsMoreArenas) {
  MemoryTable table({.spare_bytes = 0, .max_arenas = 20, .min_arenas_of_worker = 4, .bytes_of_arena = 16 << 10, .available_bytes = {}});
  std::string hint;
  const auto num_opened = [&](std::uint64_t bytes) {
    int n = 0;
    while (table.open(kJob, "arena-" + std::to_string(n), bytes, kWorker)) ++n;
    hint = table.open(kJob, "arena-" + std::to_string(n), bytes, kWorker).error().hint();
    table.mark_gone(kWorker, "was killed by SIGKILL");
    return n;
  };
  EXPECT_EQ(num_opened(4 << 10), 5);  // 4, and one for their 16 KiB
  EXPECT_EQ(hint.find("ulimit"), std::string::npos);
  EXPECT_EQ(num_opened(16 << 10), 10);  // half of the node's 20 arenas
  EXPECT_NE(hint.find("ulimit"), std::string::npos);
  ASSERT_TRUE(table.open(kJob, "large", 1 << 20, kWorker));
  table.drop(kJob, "large", kWorker);
  EXPECT_EQ(num_opened(4 << 10), 5);  // the memory of a dropped arena counts no more
}

TEST(MemoryTableBoundsTest, AGetOfARefusedObjectFails) {
  MemoryTable table{{.spare_bytes = 0, .max_entries = 2, .available_bytes = {}}};
  const auto put = [&](JobId job, std::uint64_t id) { return table.put(job, ObjectId{id}, runtime::make_memory("o", 100)).has_value(); };
  const auto get = [&](JobId job, std::uint64_t id) {
    const auto said = std::make_shared<std::string>("nothing");  // shared, because the answer may come later
    table.get(job, ObjectId{id}, kWorker, [said](Result<Fd> r) { *said = r ? "memory" : code_name(r.error().code()); });
    return *said;
  };
  EXPECT_TRUE(put(kJob, 1) && put(kOther, 2));
  EXPECT_FALSE(put(kJob, 3));
  EXPECT_EQ(get(kJob, 3), "ResourceExhausted");
  table.free(kOther, ObjectId{2});
  EXPECT_EQ(get(kJob, 3), "ResourceExhausted");  // its put was refused before
  EXPECT_EQ(get(kJob, 4), "nothing");            // its put may still come
  EXPECT_TRUE(put(kOther, 4));
  EXPECT_FALSE(put(kOther, 5));
  EXPECT_EQ(get(kOther, 6), "ResourceExhausted");  // the list of refused objects is full
  table.end_job(kJob);
  EXPECT_EQ(get(kOther, 6), "nothing");
  EXPECT_EQ(get(kOther, 5), "ResourceExhausted");
  table.drop(kOther, ObjectId{5});
  EXPECT_EQ(get(kOther, 5), "nothing");
  EXPECT_EQ(get(kOther, 4), "memory");
}

TEST(MemoryTableBoundsTest, TheOldestFreedObjectIsForgottenFirst) {
  MemoryTable table{{.spare_bytes = 0, .max_freed = 3, .available_bytes = {}}};
  for (const std::uint64_t id : {10u, 20u, 30u, 30u, 40u}) table.free(kJob, ObjectId{id});
  EXPECT_FALSE(table.freed(kJob, ObjectId{10}));
  for (const std::uint64_t id : {20u, 30u, 40u}) EXPECT_TRUE(table.freed(kJob, ObjectId{id}));
}

}  // namespace
}  // namespace shoal::storage
