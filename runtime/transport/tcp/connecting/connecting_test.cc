// Addresses of ranks, and introductions with their proofs of the token.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/transport/tcp/connecting/introduction.h"
#include "runtime/transport/tcp/connecting/rank_address.h"

namespace shoal::runtime {
namespace {

TEST(RankAddressTest, IsReadAsItWasWritten) {
  SeededRandom random(3);
  for (const std::string host : {"10.1.2.3", "fd00::1"}) {
    const RankAddress address{host, 4711, Token::random(random)};
    const auto read = RankAddress::parse(address.text(), 1).value();
    EXPECT_EQ(read.host, host);
    EXPECT_EQ(read.port, 4711);
    EXPECT_EQ(read.token, address.token);
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"4711", "0"}, {"4711", "99999"}, {host, "host"}, {"-1-", "-9-"}}) {
      std::string text = address.text();
      text.replace(text.find(from), from.size(), to);
      EXPECT_EQ(RankAddress::parse(text, 1).error().code(), Code::kInvalidArgument) << text;
    }
  }
  EXPECT_FALSE(RankAddress::parse("", 1));
}

TEST(IntroductionTest, NeedsTheTokenAndTheSession) {
  SeededRandom random(3);
  const auto token = Token::random(random), other = Token::random(random);
  TlsBinding here{}, elsewhere{};
  elsewhere[0] = 1;
  const Introduction said{1, 0, 2, 3, {4, 5}};
  const auto message = Introduction::encode(said, token, here);
  EXPECT_EQ(Introduction::decode(message, token, here).value().number, 2u);
  EXPECT_EQ(Introduction::decode(message, other, here).error().reason(), "TokenRefused");
  EXPECT_FALSE(Introduction::decode(message, token, elsewhere));
  const auto answer = Welcome::encode(Welcome::Verdict::kLate, said, token, here);
  EXPECT_EQ(Welcome::decode(answer, said, token, here).value(), Welcome::Verdict::kLate);
  EXPECT_FALSE(Welcome::decode(answer, said, other, here));
  EXPECT_FALSE(Welcome::decode(answer, {1, 0, 2, 4, {4, 5}}, token, here));
  for (std::size_t i = 0; i < message.size(); ++i) {
    auto changed = message;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(Introduction::decode(changed, token, here)) << i;
  }
}

}  // namespace
}  // namespace shoal::runtime
