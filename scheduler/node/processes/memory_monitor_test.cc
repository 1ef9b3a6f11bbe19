#include "scheduler/node/processes/memory_monitor.h"

#include <csignal>
#include <map>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/rows.h"
#include "runtime/sim/sim_clock.h"

namespace shoal::scheduler {
namespace {

constexpr std::uint64_t kMiB = 1u << 20, kGiB = 1u << 30;
constexpr std::uint64_t kLimit = 10 * kGiB;

MemoryUser user(std::uint64_t id, std::uint64_t job, bool run_again, std::uint64_t bytes = kGiB) {
  return {WorkerId{id}, "actor A" + std::to_string(id), static_cast<pid_t>(id), JobId{job}, run_again, id, bytes};
}

TEST(WhomToEndTest, NoVictimWithoutWorkers) { EXPECT_EQ(whom_to_end({}, kLimit), std::nullopt); }

TEST(WhomToEndTest, TheLastStarted) { EXPECT_EQ(whom_to_end({user(1, 1, true), user(3, 1, true), user(2, 1, true)}, kLimit), 1u); }

TEST(WhomToEndTest, RepeatableWorkIsKilledFirst) {
  EXPECT_EQ(whom_to_end({user(1, 1, true), user(2, 1, false), user(3, 1, false)}, kLimit), 0u);
}

TEST(WhomToEndTest, AWorkerOfTheJobWithMostWorkers) {
  EXPECT_EQ(whom_to_end({user(1, 1, true), user(2, 1, true), user(3, 2, true)}, kLimit), 1u);
  // Only workers in the same class count, by size and by whether their work runs again.
  EXPECT_EQ(whom_to_end({user(1, 1, true), user(2, 1, false), user(3, 1, false), user(4, 2, true), user(5, 2, true)}, kLimit), 4u);
}

TEST(WhomToEndTest, TinyProcessesAreKilledOnlyWithoutLargerOnes) {
  EXPECT_EQ(whom_to_end({user(1, 1, false), user(2, 1, true, 20 * kMiB)}, kLimit), 0u);
  EXPECT_EQ(whom_to_end({user(1, 1, false, 10 * kMiB), user(2, 1, true, 20 * kMiB)}, kLimit), 1u);
  // The limit of 256 MiB holds on a large machine as well
  EXPECT_EQ(whom_to_end({user(1, 1, false, 11 * kGiB), user(2, 1, true, 9 * kGiB)}, 1024 * kGiB), 1u);
}

TEST(WouldHelpTest, EndingAWorkerHelpsOnlyIfWorkersFillTheMemory) {
  const std::uint64_t threshold = kLimit / 100 * 95;
  EXPECT_TRUE(would_help({user(1, 1, true, 300 * kMiB), user(2, 1, true, 300 * kMiB)}, kLimit, threshold, kLimit));
  EXPECT_FALSE(would_help({user(1, 1, true, 400 * kMiB)}, kLimit, threshold, kLimit));  // too little to come below the threshold
  // Enough for that, but less than a twentieth of the limit
  EXPECT_FALSE(would_help({user(1, 1, true, 400 * kMiB)}, threshold + 1, threshold, kLimit));
  EXPECT_FALSE(would_help({}, kLimit, threshold, kLimit));
}

TEST(NextLookTest, IsSoonerNearTheThreshold) {
  using std::chrono::milliseconds;
  EXPECT_EQ(next_check(0, 100 * kGiB), milliseconds(2000));
  EXPECT_EQ(next_check(96 * kGiB, 100 * kGiB), milliseconds(1000));
  EXPECT_EQ(next_check(100 * kGiB, 100 * kGiB), milliseconds(100));
  EXPECT_EQ(next_check(101 * kGiB, 100 * kGiB), milliseconds(100));
}

// A host with a few workers, on virtual time.
class MemoryMonitorTest : public testing::Test {
 protected:
  MemoryMonitor& start(double threshold, std::uint64_t limit = 0) {
    MemoryMonitor::Options o;
    o.threshold = threshold;
    o.limit = limit;
    o.where = "node here";
    o.machine = [this] {
      ++looks_;
      return runtime::MachineMemory{kLimit, kLimit - used_};
    };
    o.measure = [this](std::vector<pid_t> pids, const MemoryMonitor::Options::Measured& then) {
      ++looks_at_workers_;
      std::vector<std::uint64_t> out;
      for (const pid_t pid : pids) out.push_back(bytes_.at(pid));
      measuring_ = clock_.after(measures_, [then, out] { then(out); });
    };
    o.kernel_kills = [this] { return kernel_kills_; };
    monitor_.emplace(
        clock_, runtime::make_null_log(), o, [this] { return users_; }, [this](WorkerId worker) { killed_.push_back(worker); });
    monitor_->start();
    return *monitor_;
  }
  void pass(std::chrono::milliseconds time) {
    const auto until = clock_.now() + time;
    while (clock_.next() <= until) clock_.fire_next();
    clock_.advance_to(until);
  }
  void worker(std::uint64_t id, bool run_again, std::uint64_t bytes) {
    users_.push_back(user(id, 1, run_again, 0));
    bytes_[static_cast<pid_t>(id)] = bytes;
  }
  std::optional<Error> ends(std::uint64_t id, int signal = SIGKILL, bool asked = false) {
    std::erase_if(users_, [&](const auto& u) { return u.worker == WorkerId{id}; });
    return monitor_->cause_of_end(WorkerId{id}, "actor A" + std::to_string(id), static_cast<pid_t>(id), {true, 0, signal}, asked);
  }

  runtime::SimClock clock_;
  runtime::Timer measuring_;
  std::chrono::milliseconds measures_{20};
  std::uint64_t used_ = 0, kernel_kills_ = 7;
  int looks_ = 0, looks_at_workers_ = 0;
  std::vector<MemoryUser> users_;
  std::map<pid_t, std::uint64_t> bytes_;
  std::vector<WorkerId> killed_;
  std::optional<MemoryMonitor> monitor_;
};

TEST_F(MemoryMonitorTest, FarFromTheThresholdItLooksRarelyAndNeverAtWorkers) {
  worker(1, true, kGiB);
  start(0.95);
  pass(std::chrono::seconds(60));
  EXPECT_LE(looks_, 31);
  EXPECT_GE(looks_, 25);
  EXPECT_EQ(looks_at_workers_, 0);
  EXPECT_TRUE(killed_.empty());
}

TEST_F(MemoryMonitorTest, BeyondItOneIsKilledAndOnlyAfterItsEndAnother) {
  worker(1, true, 3 * kGiB);
  worker(2, true, 4 * kGiB);
  start(0.95);
  used_ = kLimit - kGiB / 4;
  pass(std::chrono::seconds(3));
  ASSERT_EQ(killed_, (std::vector{WorkerId{2}}));
  pass(std::chrono::seconds(30));
  ASSERT_EQ(killed_.size(), 1u);
  const auto cause = ends(2);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->reason(), actors::kOutOfMemory);
  for (const char* part : {"actor A2 (pid 2)", "it used 4.00 GiB", "node here uses 9.75 GiB of 10.00 GiB", "95 %", "can be repeated",
                           "use most: actor A2 (pid 2) 4.00 GiB, actor A1 (pid 1) 3.00 GiB"}) {
    EXPECT_NE(cause->message().find(part), std::string::npos) << part << "\n" << cause->message();
  }
  EXPECT_NE(cause->hint().find("--memory-usage-threshold"), std::string::npos);
  pass(std::chrono::seconds(3));
  EXPECT_EQ(killed_, (std::vector{WorkerId{2}, WorkerId{1}}));
  ends(1);
  used_ = kGiB;
  pass(std::chrono::seconds(30));
  EXPECT_EQ(killed_.size(), 2u);
}

TEST_F(MemoryMonitorTest, MemoryOfOtherProgramsCostsNoWorker) {
  worker(1, true, 30 * kMiB);
  start(0.95);
  used_ = kLimit;
  pass(std::chrono::seconds(60));
  EXPECT_TRUE(killed_.empty());
  EXPECT_LE(looks_at_workers_, 13);
  bytes_[1] = 2 * kGiB;
  pass(std::chrono::seconds(10));
  EXPECT_EQ(killed_.size(), 1u);
}

TEST_F(MemoryMonitorTest, MemoryOfTheLastVictimMayReturnBeforeTheNextChoice) {
  for (std::uint64_t id = 1; id <= 3; ++id) worker(id, true, 2 * kGiB);
  start(0.95);
  used_ = kLimit;
  pass(std::chrono::seconds(3));
  ASSERT_EQ(killed_, (std::vector{WorkerId{3}}));
  ends(3);  // memory stays in use while its children end
  pass(std::chrono::seconds(1));
  EXPECT_EQ(killed_.size(), 1u);
  used_ -= 2 * kGiB;
  pass(std::chrono::seconds(30));
  EXPECT_EQ(killed_.size(), 1u);
  used_ = kLimit;
  pass(std::chrono::seconds(3));
  ASSERT_EQ(killed_.size(), 2u);
  ends(2);  // its memory does not become free
  pass(std::chrono::seconds(3));
  EXPECT_EQ(killed_.size(), 3u);
}

TEST_F(MemoryMonitorTest, AProcessThatEndsDuringTheMeasurementIsNotChosen) {
  worker(1, true, 3 * kGiB);
  worker(2, true, 4 * kGiB);
  measures_ = std::chrono::seconds(1);
  start(0.95);
  used_ = kLimit;
  pass(std::chrono::milliseconds(2500));
  ASSERT_EQ(looks_at_workers_, 1);
  EXPECT_EQ(ends(2, 0), std::nullopt);
  pass(std::chrono::seconds(1));
  EXPECT_EQ(killed_, (std::vector{WorkerId{1}}));
}

TEST_F(MemoryMonitorTest, WithoutAVictimItKeepsMeasuring) {
  start(0.5);
  used_ = 6 * kGiB;
  pass(std::chrono::seconds(30));
  EXPECT_TRUE(killed_.empty());
  worker(1, false, kGiB);
  pass(std::chrono::seconds(10));
  EXPECT_EQ(killed_.size(), 1u);
}

TEST_F(MemoryMonitorTest, AThresholdOfZeroOrOneKillsNoProcess) {
  for (const double threshold : {0.0, 1.0}) {
    worker(1, true, 9 * kGiB);
    used_ = kLimit;
    start(threshold);
    pass(std::chrono::seconds(60));
    EXPECT_TRUE(killed_.empty());
    EXPECT_EQ(looks_, 0);
  }
}

TEST_F(MemoryMonitorTest, AnOwnLimitCountsTheWorkersMemory) {
  used_ = kLimit;  // by other programs, which do not count
  worker(1, true, 100 * kMiB);
  worker(2, true, 90 * kMiB);
  start(0.5, 400 * kMiB);
  pass(std::chrono::seconds(10));
  EXPECT_TRUE(killed_.empty());
  EXPECT_EQ(looks_, 0);
  bytes_[1] = 150 * kMiB;
  pass(std::chrono::seconds(10));
  EXPECT_EQ(killed_, (std::vector{WorkerId{2}}));
  EXPECT_NE(ends(2)->message().find("240.0 MiB of 400.0 MiB"), std::string::npos);
}

TEST_F(MemoryMonitorTest, AKillByTheKernelsOomKillerIsReportedAsSuch) {
  start(0);
  EXPECT_EQ(ends(1), std::nullopt);  // killed by a user, as the kernel has counted no kill
  kernel_kills_ = 8;
  pass(std::chrono::seconds(3));
  EXPECT_EQ(ends(2, SIGTERM), std::nullopt);
  EXPECT_EQ(ends(3, SIGKILL, true), std::nullopt);
  const auto cause = ends(4);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->reason(), actors::kOutOfMemory);
  EXPECT_NE(cause->message().find("by the kernel"), std::string::npos);
  EXPECT_EQ(ends(5), std::nullopt);  // the kernel has counted one kill, which was worker 4's
}

TEST_F(MemoryMonitorTest, KillsOfTheKernelThatWereOthersAreForgotten) {
  start(0);
  kernel_kills_ = 9;
  pass(std::chrono::seconds(30));
  EXPECT_EQ(ends(1), std::nullopt);
}

TEST_F(MemoryMonitorTest, AProcessThatEndsBeforeTheKillIsNotReportedAsKilled) {
  worker(1, true, 6 * kGiB);
  start(0.5);
  used_ = kLimit;
  pass(std::chrono::seconds(3));
  ASSERT_EQ(killed_.size(), 1u);
  EXPECT_EQ(ends(1, 0), std::nullopt);
}

}  // namespace
}  // namespace shoal::scheduler
