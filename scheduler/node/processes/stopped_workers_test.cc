#include "scheduler/node/processes/stopped_workers.h"

#include <vector>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace stopped_workers_test {

using namespace std::chrono_literals;
using Finding = StoppedWorkers::Finding;

constexpr WorkerId kWorker{1}, kOther{2};

class StoppedWorkersTest : public testing::Test {
 protected:
  // The findings of `looks` looks at a stopped worker, by the number of the look.
  static std::map<int, Finding> findings(StoppedWorkers& workers, int looks) {
    std::map<int, Finding> out;
    for (int i = 1; i <= looks; ++i) {
      if (const auto found = workers.check(kWorker, true); found != Finding::kNone) out[i] = found;
    }
    return out;
  }
  StoppedWorkers workers_{{.interval = 2s, .report_after = 10s, .limit = 60s}};
};

TEST_F(StoppedWorkersTest, AStoppedWorkerIsReportedAndLaterEnded) {
  EXPECT_EQ(findings(workers_, 100), (std::map<int, Finding>{{5, Finding::kStopped}, {30, Finding::kTooLong}}));
}

TEST_F(StoppedWorkersTest, AWorkerThatRunsIsNeverReported) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(workers_.check(kWorker, false), Finding::kNone);
}

TEST_F(StoppedWorkersTest, AWorkerThatContinuesIsReportedIfItsStopWas) {
  findings(workers_, 4);
  EXPECT_EQ(workers_.check(kWorker, false), Finding::kNone);
  findings(workers_, 29);
  EXPECT_EQ(workers_.check(kOther, true), Finding::kNone);
  EXPECT_EQ(workers_.check(kWorker, false), Finding::kContinues);
  EXPECT_EQ(findings(workers_, 29), (std::map<int, Finding>{{5, Finding::kStopped}}));
}

TEST_F(StoppedWorkersTest, WithoutALimitNoWorkerIsEnded) {
  StoppedWorkers workers({.interval = 2s, .report_after = 10s, .limit = 0s});
  EXPECT_EQ(findings(workers, 1000), (std::map<int, Finding>{{5, Finding::kStopped}}));
}

TEST_F(StoppedWorkersTest, AShortLimitEndsAWorkerWithoutAReport) {
  StoppedWorkers workers({.interval = 2s, .report_after = 10s, .limit = 1s});
  EXPECT_EQ(findings(workers, 1), (std::map<int, Finding>{{1, Finding::kTooLong}}));
}

}  // namespace stopped_workers_test
}  // namespace shoal::scheduler
