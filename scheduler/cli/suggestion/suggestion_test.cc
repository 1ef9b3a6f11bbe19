#include "scheduler/cli/suggestion/suggestion.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

const std::vector<std::string> kWords = {"start", "stop", "status", "submit", "job", "logs", "list", "health-check"};

TEST(Suggestion, IsTheWordThatDiffersLeast) {
  EXPECT_EQ(nearest("stauts", kWords), "status");  // two letters swapped; "start" is farther
  EXPECT_EQ(nearest("sumbit", kWords), "submit");
  EXPECT_EQ(nearest("jobs", kWords), "job");
  EXPECT_EQ(nearest("log", kWords), "logs");
  EXPECT_EQ(nearest("strat", kWords), "start");
  EXPECT_EQ(nearest("healthcheck", kWords), "health-check");
}

TEST(Suggestion, IsTheWordThatGoesOnSo) {
  EXPECT_EQ(nearest("health", kWords), "health-check");
  EXPECT_EQ(nearest("sub", kWords), "submit");
}

TEST(Suggestion, IsNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest("kubernetes", kWords), "");
  EXPECT_EQ(nearest("", kWords), "");
  EXPECT_EQ(nearest("xyz", kWords), "");
  EXPECT_EQ(nearest("start", {}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), kWords), "");
}

}  // namespace
}  // namespace shoal::scheduler::cli
