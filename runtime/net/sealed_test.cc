#include "runtime/net/sealed.h"

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

TEST(Sealed, IsReadWithItsTokenAndContextOnly) {
  const Token token = Token::parse(std::string(64, 'a')).value(), other = Token::parse(std::string(64, 'b')).value();
  const std::string sealed = seal(token, "rank 1", "10.0.0.1:4711 secret");
  EXPECT_EQ(sealed.find("secret"), std::string::npos);
  EXPECT_EQ(unseal(token, "rank 1", sealed).value(), "10.0.0.1:4711 secret");
  EXPECT_EQ(unseal(token, "rank 1", seal(token, "rank 1", "")).value(), "");
  EXPECT_EQ(unseal(other, "rank 1", sealed).error().reason(), "NotSealed");
  EXPECT_EQ(unseal(token, "rank 2", sealed).error().reason(), "NotSealed");
  EXPECT_NE(seal(token, "", "same"), seal(token, "", "same"));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(unseal(token, "rank 1", changed)) << i;
    EXPECT_FALSE(unseal(token, "rank 1", std::string_view(sealed).substr(0, i))) << i;
  }
}

}  // namespace
}  // namespace shoal::runtime
