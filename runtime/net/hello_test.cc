#include "runtime/net/hello.h"

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

class HelloTest : public testing::Test {
 protected:
  struct Outcome {
    HelloListener::Verdict listener;
    Result<std::uint16_t> caller;
  };
  // Runs both sides; can flip a bit of the answer's or the verdict's given byte.
  Outcome greet(HelloListener& listener, HelloCaller& caller, int spoil_answer = -1, int spoil_verdict = -1) {
    auto answer = caller.answer(listener.challenge());
    if (!answer) return {{{}, fail(answer.error()), Role::kClient, 0}, fail(answer.error())};
    if (spoil_answer >= 0) (*answer)[static_cast<std::size_t>(spoil_answer)] ^= 1;
    auto verdict = listener.judge(*answer);
    if (spoil_verdict >= 0) verdict.message[static_cast<std::size_t>(spoil_verdict)] ^= 1;
    return {verdict, caller.conclude(verdict.message)};
  }

  SeededRandom random_{1};
  Token token_ = Token::random(random_);
};

TEST_F(HelloTest, TwoSidesWithOneTokenAgreeOnTheNewestCommonVersion) {
  HelloListener listener(token_, {1, 2}, random_);
  HelloCaller caller(token_, {2, 3}, Role::kNode, random_);
  const auto o = greet(listener, caller);
  ASSERT_TRUE(o.listener.accepted);
  EXPECT_EQ(o.listener.version, 2);
  EXPECT_EQ(o.listener.role, Role::kNode);
  EXPECT_EQ(o.caller.value(), 2);
}

TEST_F(HelloTest, AnOlderCallerOfTheVersionBeforeIsUnderstood) {
  HelloListener listener(token_, {1, 2}, random_);
  HelloCaller caller(token_, {1, 1}, Role::kClient, random_);
  EXPECT_EQ(greet(listener, caller).caller.value(), 1);
}

TEST_F(HelloTest, VersionsThatDoNotMeetAreNamedOnBothSides) {
  HelloListener listener(token_, {3, 4}, random_);
  HelloCaller caller(token_, {1, 2}, Role::kClient, random_);
  const auto o = greet(listener, caller);
  EXPECT_EQ(o.caller.error().reason(), "VersionMismatch");
  EXPECT_NE(o.caller.error().message().find("this side speaks 1 to 2, the other 3 to 4"), std::string::npos);
}

TEST_F(HelloTest, AWrongTokenIsRefused) {
  HelloListener listener(token_, {}, random_);
  HelloCaller caller(Token::random(random_), {}, Role::kClient, random_);
  const auto o = greet(listener, caller);
  EXPECT_EQ(o.listener.accepted.error().reason(), "TokenRefused");
  EXPECT_EQ(o.caller.error().reason(), "TokenRefused");
}

TEST_F(HelloTest, AListenerWithoutTheTokenIsFoundOut) {
  HelloListener impostor(Token::random(random_), {}, random_);
  HelloCaller caller(token_, {}, Role::kClient, random_);
  auto answer = caller.answer(impostor.challenge());
  ASSERT_TRUE(answer);
  auto verdict = impostor.judge(*answer).message;
  verdict[5] = 0;  // "accepted" without proof
  EXPECT_EQ(caller.conclude(verdict).error().reason(), "TokenRefused");
}

TEST_F(HelloTest, EveryAlteredByteThatMattersIsNoticed) {
  for (int i = 0; i < 64; ++i) {
    HelloListener listener(token_, {}, random_);
    HelloCaller caller(token_, {}, Role::kClient, random_);
    EXPECT_FALSE(greet(listener, caller, i).listener.accepted) << "answer byte " << i;
  }
  for (int i = 0; i < 64; ++i) {
    HelloListener listener(token_, {1, 3}, random_);  // both speak several versions, so an altered one stays valid
    HelloCaller caller(token_, {1, 3}, Role::kClient, random_);
    EXPECT_FALSE(greet(listener, caller, -1, i).caller) << "verdict byte " << i;
  }
}

TEST_F(HelloTest, AnAnswerCannotBeReplayed) {
  HelloListener first(token_, {}, random_), second(token_, {}, random_);
  HelloCaller caller(token_, {}, Role::kClient, random_);
  const auto answer = caller.answer(first.challenge());
  EXPECT_TRUE(first.judge(*answer).accepted);
  EXPECT_FALSE(second.judge(*answer).accepted);
}

TEST_F(HelloTest, TokensRoundTripAsText) {
  EXPECT_EQ(Token::parse(" " + token_.hex() + "\n").value(), token_);
  EXPECT_FALSE(Token::parse("abc"));
  EXPECT_FALSE(Token::parse(std::string(64, 'x')));
}

}  // namespace
}  // namespace shoal::runtime
