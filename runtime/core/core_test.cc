#include <cerrno>

#include <gtest/gtest.h>

#include "runtime/core/bytes.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"
#include "runtime/core/utf8.h"

namespace shoal {
namespace {

Result<int> half(int n) {
  if (n % 2) return fail(invalid_argument("odd").with_hint("use an even number"));
  return n / 2;
}

Result<int> quarter(int n) {
  SHOAL_TRY(const int h, half(n));
  SHOAL_TRY(const int q, half(h));
  return q;
}

TEST(Result, CarriesTheValueOrTheFirstError) {
  EXPECT_EQ(quarter(12).value(), 3);
  const auto bad = quarter(6);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.error().hint(), "use an even number");
}

TEST(Error, PrintsCodeReasonContextAndHintFirstCauseFirst) {
  const Error e = unavailable("killed by signal 9").with_reason("ActorDied").with_hint("look at the logs").in("actor A").in("rank 1");
  EXPECT_EQ(e.to_string(), "error[Unavailable/ActorDied]: killed by signal 9\n  in: actor A, rank 1\n  hint: look at the logs");
}

TEST(Error, HasTheReasonAndTheMessageOfItsCause) {
  const Error cause = unavailable("its node was drained").with_reason("NodeDrained");
  const Error e = unavailable("actor A died: ").because(cause).with_reason("ActorDied");
  EXPECT_EQ(e.message(), "actor A died: its node was drained");
  EXPECT_EQ(e.cause_message(), cause.message());
  EXPECT_EQ(Error(e).cause_reason(), "NodeDrained");
  EXPECT_EQ(cause.cause_message(), "");
}

TEST(Error, KeepsTheInnermostFramesWhenTheChainIsTooLong) {
  Error e = internal("x");
  for (int i = 0; i < 100; ++i) e = std::move(e).in(std::to_string(i));
  EXPECT_EQ(e.context().size(), Error::kMaxContext);
  EXPECT_EQ(e.context().front(), "0");
}

TEST(Error, TurnsErrnoIntoACodeForTheCallersReaction) {
  EXPECT_EQ(from_errno(ECONNREFUSED, "connect").code(), Code::kUnavailable);
  EXPECT_EQ(from_errno(ECONNREFUSED, "connect").reason(), "Refused");
  EXPECT_EQ(from_errno(EHOSTUNREACH, "connect").reason(), "");
  EXPECT_EQ(from_errno(EADDRINUSE, "bind").reason(), "AddressInUse");
  EXPECT_EQ(from_errno(ENOENT, "open x").code(), Code::kNotFound);
}

TEST(Error, ResultOfVoidIsTwoWordsAtMost) { EXPECT_LE(sizeof(Result<void>), 2 * sizeof(void*)); }

TEST(Id, RoundTripsThroughHex) {
  EXPECT_EQ(to_string(ActorId{0xabc}), "0000000000000abc");
  EXPECT_EQ(parse_hex("0000000000000abc"), 0xabcu);
  EXPECT_FALSE(parse_hex(""));
  EXPECT_FALSE(parse_hex("12g"));
  EXPECT_FALSE(parse_hex("00000000000000001"));
}

TEST(Bytes, AMovedFromErrorIsEmpty) {
  Bytes a = Bytes::copy_of("shoal");
  const Bytes b = std::move(a);
  EXPECT_EQ(b.view(), "shoal");
  EXPECT_TRUE(a.empty());  // NOLINT: the moved-from state is under test
}

TEST(Utf8, InvalidUtf8BecomesValid) {
  EXPECT_EQ(valid_utf8("plain, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x90\x9f"), "plain, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x90\x9f");
  EXPECT_EQ(valid_utf8("bad \xff\xfe byte"), "bad \xef\xbf\xbd\xef\xbf\xbd byte");
  EXPECT_EQ(valid_utf8("cut \xe2\x82"), "cut \xef\xbf\xbd\xef\xbf\xbd");
  for (const char* wrong : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    EXPECT_EQ(valid_utf8(wrong).substr(0, 3), "\xef\xbf\xbd") << wrong;
  }
}

TEST(Utf8, TextIsCutBetweenCharacters) {
  const std::string text =
      "a\xe2\x82\xac"
      "b";
  EXPECT_EQ(utf8_prefix(text, 9), text);
  EXPECT_EQ(utf8_prefix(text, 4), text.substr(0, 4));
  for (const std::size_t bytes : {1, 2, 3}) EXPECT_EQ(utf8_prefix(text, bytes), "a");
  EXPECT_EQ(utf8_prefix(std::string(9, '\x80'), 5).size(), 5u);  // invalid UTF-8: cut anywhere
}

}  // namespace
}  // namespace shoal
