#include "actors/session/objects/outlived.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

TEST(OutlivedTest, AnObjectIsUsedUntilItEnds) {
  int target = 0;
  Outlived<int> outlived(target);
  EXPECT_TRUE(outlived.call([](int& t) { t = 1; }));
  EXPECT_FALSE(outlived.ending());
  outlived.end();
  EXPECT_FALSE(outlived.call([](int& t) { t = 2; }));
  EXPECT_TRUE(outlived.ending());
  EXPECT_EQ(target, 1);
}

TEST(OutlivedTest, AForkedChildUsesNothingAndWaitsForNoLock) {
  int target = 0, status = -1;
  Outlived<int> outlived(target);
  pid_t child = -1;
  ASSERT_TRUE(outlived.call([&](int&) {
    child = fork();
    if (child != 0) return;
    alarm(5);  // ends a child that waits for the lock
    _exit(outlived.forked() && !outlived.call([](int& t) { t = 1; }) ? 0 : 1);
  }));
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(outlived.forked());
}

}  // namespace
}  // namespace shoal::actors
