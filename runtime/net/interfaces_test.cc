#include "runtime/net/interfaces.h"

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

TEST(Interfaces, AreFoundByNameAndByAddress) {
  EXPECT_EQ(find_interface("lo").value().address, "127.0.0.1");
  EXPECT_EQ(find_interface("127.0.0.1").value().name, "lo");
  const auto other = find_interface("127.0.0.5").value();
  EXPECT_EQ(other.name, "lo");
  EXPECT_EQ(other.address, "127.0.0.5");
  const auto any = find_interface("").value();
  EXPECT_EQ(find_interface(any.address).value().name, any.name);
}

TEST(Interfaces, ThatDoNotExistAreRefusedWithThoseThatDo) {
  for (const char* none : {"eth99", "203.0.113.7", "::7", "loop"}) {
    const auto found = find_interface(none);
    ASSERT_FALSE(found) << none;
    EXPECT_EQ(found.error().reason(), "NoInterface");
    EXPECT_NE(found.error().message().find(none), std::string::npos) << found.error().message();
    EXPECT_NE(found.error().hint().find("lo (127.0.0.1)"), std::string::npos) << found.error().hint();
  }
}

}  // namespace
}  // namespace shoal::runtime
