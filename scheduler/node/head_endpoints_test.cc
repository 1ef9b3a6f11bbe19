#include "scheduler/node/head_endpoints.h"

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using runtime::Endpoint;
using Strings = std::vector<std::string>;

std::string text(const std::string& host) { return Endpoint::tcp(host, 1).to_string(); }

class HeadEndpointsTest : public testing::Test {
 protected:
  HeadEndpoints heads_{{Endpoint::tcp("a", 1), Endpoint::tcp("b", 1)}};
};

TEST_F(HeadEndpointsTest, ReportedHeadsComeAfterTheConfiguredOnes) {
  const auto changed = heads_.set_reported({text("c"), text("b")});
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->endpoints, (Strings{text("a"), text("b"), text("c")}));
  EXPECT_FALSE(changed->moved);
}

TEST_F(HeadEndpointsTest, TheSameListIsNoNews) {
  EXPECT_TRUE(heads_.set_reported({text("c")}));
  EXPECT_FALSE(heads_.set_reported({text("c")}));
}

TEST_F(HeadEndpointsTest, AnotherHeadInUseIsAMove) {
  heads_.set_reported({text("c")});
  heads_.next();
  const auto changed = heads_.set_reported({text("c")});
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->endpoints, (Strings{text("b"), text("a"), text("c")}));
  EXPECT_TRUE(changed->moved);
}

TEST_F(HeadEndpointsTest, TheHeadInUseStaysAlsoIfItIsReportedNoMore) {
  heads_.set_reported({text("c")});
  heads_.next();
  heads_.next();
  ASSERT_EQ(heads_.in_use().to_string(), text("c"));
  EXPECT_TRUE(heads_.set_reported({text("d")}));
  EXPECT_EQ(heads_.in_order(), (Strings{text("c"), text("a"), text("b"), text("d")}));
  heads_.next();
  EXPECT_EQ(heads_.in_use().to_string(), text("a"));
}

TEST_F(HeadEndpointsTest, AnEndpointThatCannotBeReadIsLeftOut) {
  heads_.set_reported({"", text("c")});
  EXPECT_EQ(heads_.size(), 3u);
}

}  // namespace
}  // namespace shoal::scheduler
