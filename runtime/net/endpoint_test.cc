#include "runtime/net/endpoint.h"

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

TEST(Endpoints, OneTextNamesBothEndpoints) {
  const Endpoint both = parse_endpoint("10.0.0.1:4711/@a-name").value();
  EXPECT_EQ(both, (Endpoint{"a-name", "10.0.0.1", 4711}));
  EXPECT_TRUE(both.is_both());
  EXPECT_FALSE(both.is_unix());
  EXPECT_EQ(both.to_string(), "10.0.0.1:4711/@a-name");
  EXPECT_EQ(both.on_its_host().to_string(), "unix:@a-name");
  EXPECT_EQ(both.from_elsewhere().to_string(), "10.0.0.1:4711");
  EXPECT_TRUE(parse_endpoint("unix:@a-name").value().is_unix());
  for (const char* bad : {"10.0.0.1:4711/@", "10.0.0.1/@a", "/@a", ":1/@a", "10.0.0.1:x/@a"}) EXPECT_FALSE(parse_endpoint(bad)) << bad;
}

}  // namespace
}  // namespace shoal::runtime
