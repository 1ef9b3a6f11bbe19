#include <cerrno>

#include <gtest/gtest.h>

#include "runtime/core/bytes.h"
#include "runtime/core/id.h"
#include "runtime/core/printable.h"
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

TEST(Error, PrintsNoControlCharacters) {
  const Error e = not_found(std::string("no actor a\0b\x1b[2J", 16)).with_hint("two\nlines").in("actor \xc2\x9b");
  EXPECT_EQ(e.to_string(), "error[NotFound]: no actor a\\x00b\\x1b[2J\n  in: actor \\u009b\n  hint: two\nlines");
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

TEST(Printable, EscapesWhatATerminalObeysOrThatHidesText) {
  struct Case {
    std::string text, line, lines;
  };
  const auto same = [](const std::string& text) { return Case{text, text, text}; };
  const Case cases[] = {
      same(""),
      same("plain \\n 'text'"),
      same("\u65e5\u672c\u8a9e \u00e9 \u05e9 \u0634 \U0001f41f \u00a0 \u2026 \u200d"),
      {"a\nb\tc", "a\\nb\\tc", "a\n> b\tc"},
      {"\x1b[31m\rok\a\b", "\\x1b[31m\\rok\\x07\\x08", "\\x1b[31m\\rok\\x07\\x08"},
      {"\x1b]52;c;cHduZWQ=\x07", "\\x1b]52;c;cHduZWQ=\\x07", "\\x1b]52;c;cHduZWQ=\\x07"},
      {std::string("cut\0here\x7f", 9), "cut\\x00here\\x7f", "cut\\x00here\\x7f"},
      {"\u0080\u009b\u009f", "\\u0080\\u009b\\u009f", "\\u0080\\u009b\\u009f"},
      {"\x9b"
       "31m \xff \xe2\x80",
       "\\x9b31m \\xff \\xe2\\x80", "\\x9b31m \\xff \\xe2\\x80"},
      {"\u061c\u200e\u200f\u2028\u2029", "\\u061c\\u200e\\u200f\\u2028\\u2029", "\\u061c\\u200e\\u200f\\u2028\\u2029"},
      {"\u202a\u202e\u2066\u2069", "\\u202a\\u202e\\u2066\\u2069", "\\u202a\\u202e\\u2066\\u2069"},
      same("\u00a0\u061b\u061d\u200d\u2010\u2027\u202f\u2065\u206a"),  // the neighbours of those characters
  };
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.line);
    EXPECT_EQ(printable_lines(c.text, "> "), c.lines);
    EXPECT_EQ(is_printable(c.text), c.text == c.line) << c.line;
    EXPECT_TRUE(is_printable(printable(c.text)));
  }
}

TEST(Printable, OutputForATerminalKeepsColoursAndMovesWithinTheLine) {
  for (const std::string kept : {"\x1b[31m\x1b[1;38;5;9mred\x1b[0m\x1b[m\n", "\r 10%|#  |\x1b[K\r 20%\b\t", "\x1b[2K\x1b[1G\x1b[3C\x1b[D",
                                 "\x1b[38:2:1:2:3mtrue colour", "\u65e5\u672c"}) {
    EXPECT_EQ(terminal_output(kept), kept);
  }
  EXPECT_EQ(terminal_output("\x1b]0;title\a"), "\\x1b]0;title\\x07");
  EXPECT_EQ(terminal_output("\x1b]52;c;eA==\x1b\\"), "\\x1b]52;c;eA==\\x1b\\");
  EXPECT_EQ(terminal_output("\x1b[2J\x1b[1;1H\x1b[1A\x1b[?25l\x1b[6n"), "\\x1b[2J\\x1b[1;1H\\x1b[1A\\x1b[?25l\\x1b[6n");
  EXPECT_EQ(terminal_output("\x1b[31\x1b[\x1b"), "\\x1b[31\\x1b[\\x1b");  // sequences without an end
  EXPECT_EQ(terminal_output("\x1b"
                            "c\x1bP\x0e\u009b31m\u202e"),
            "\\x1bc\\x1bP\\x0e\\u009b31m\\u202e");
}

TEST(Printable, JsonStaysJson) {
  EXPECT_EQ(printable_json("{\"a\\u001b\": \"\x7f \u0085 \u202e \u00e9\"}"), "{\"a\\u001b\": \"\\u007f \\u0085 \\u202e \u00e9\"}");
  EXPECT_EQ(printable_json("[\n\t1]"), "[\n\t1]");
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
