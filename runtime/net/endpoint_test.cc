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

TEST(Endpoints, AnIpv6AddressStandsInBrackets) {
  const Endpoint six = parse_endpoint("[FD00:91:0::1]:7460").value();
  EXPECT_EQ(six, Endpoint::tcp("fd00:91::1", 7460));
  EXPECT_EQ(six.to_string(), "[fd00:91::1]:7460");
  EXPECT_EQ(parse_endpoint(six.to_string()).value(), six);
  EXPECT_EQ(parse_endpoint("[fd00::1]:7460/@a-name").value().to_string(), "[fd00::1]:7460/@a-name");
  EXPECT_EQ(parse_endpoint("[fe80::1%eth0]:7460").value().host, "fe80::1%eth0");
  EXPECT_EQ(parse_endpoints("[::1]:1,host:2").value(), (std::vector{Endpoint::tcp("::1", 1), Endpoint::tcp("host", 2)}));
  for (const char* bad : {"fd00:91::1:7460", "::1:7460", "[fd00::1:7460", "fd00::1]:7460", "[]:1", "[host]:1", "[::1]", "[10.0.0.1]:1"}) {
    EXPECT_FALSE(parse_endpoint(bad)) << bad;
  }
}

}  // namespace
}  // namespace shoal::runtime
