#include "runtime/wire/codec.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/wire/error.capnp.h"

namespace shoal::runtime {
namespace {

Error sample() { return unavailable("killed by signal 9").with_reason("ActorDied").with_hint("read the logs").in("actor A").in("rank 1"); }

TEST(Codec, AnErrorArrivesAsItWasSent) {
  const Error e = decode_error(encode_error(sample()));
  EXPECT_EQ(e.to_string(), sample().to_string());
}

TEST(Codec, AnErrorArrivesWithItsCause) {
  const Error e = decode_error(encode_error(unavailable("actor A\xff died: ").because(cancelled("its job ended").with_reason("JobEnded"))));
  EXPECT_EQ(e.message(), "actor A\xef\xbf\xbd died: its job ended");
  EXPECT_EQ(e.cause_message(), "its job ended");
  EXPECT_EQ(e.cause_reason(), "JobEnded");
  const Error without = decode_error(encode_error(sample()));
  EXPECT_EQ(without.cause_message(), "");
  EXPECT_EQ(without.cause_reason(), "");
  const Bytes foreign = write<wire::ErrorMessage>([](wire::ErrorMessage::Builder m) {
    m.setMessage("short");
    m.setCauseBytes(100);
  });
  EXPECT_EQ(decode_error(foreign).cause_message(), "short");
}

TEST(Codec, ATextWithZeroBytesArrivesWhole) {
  const std::string whole("a\0b\0", 4);
  const Bytes bytes = write<wire::ErrorMessage>([&](wire::ErrorMessage::Builder m) {
    m.setMessage(whole);
    m.initContext(1).set(0, whole);
  });
  EXPECT_EQ(read<wire::ErrorMessage>(bytes, [](wire::ErrorMessage::Reader m) { return text(m.getMessage()); }).value(), whole);
  EXPECT_EQ(read<wire::ErrorMessage>(bytes, [](wire::ErrorMessage::Reader m) { return text(m.getContext()[0]); }).value(), whole);
}

TEST(Codec, AnErrorOfAnyLengthFitsIntoAFrame) {
  const std::string much(1 << 20, 'x');
  Error e = unavailable(much).with_reason(much).with_hint(much);
  for (std::size_t i = 0; i < Error::kMaxContext; ++i) e = std::move(e).in(much);
  const Bytes bytes = encode_error(e);
  EXPECT_LT(bytes.size(), 1u << 19);
  EXPECT_EQ(decode_error(bytes).code(), Code::kUnavailable);
}

TEST(Codec, AnErrorIsValidUtf8WithAnyContent) {
  const Error e = decode_error(encode_error(unavailable("bad \xff byte").in("actor \xfe")));
  EXPECT_EQ(e.message(), "bad \xef\xbf\xbd byte");
  EXPECT_EQ(e.context(), std::vector<std::string>{"actor \xef\xbf\xbd"});
  const Bytes foreign = write<wire::ErrorMessage>([](wire::ErrorMessage::Builder m) { m.setMessage("\xff"); });
  EXPECT_EQ(decode_error(foreign).message(), "\xef\xbf\xbd");
}

TEST(Codec, ACodeFromTheFutureIsInternal) {
  const Bytes bytes = write<wire::ErrorMessage>([](wire::ErrorMessage::Builder m) { m.setCode(999); });
  EXPECT_EQ(decode_error(bytes).code(), Code::kInternal);
}

TEST(Codec, BytesThatAreNoMessageAreRefused) {
  const auto use = [](wire::ErrorMessage::Reader m) { return text(m.getMessage()); };
  EXPECT_FALSE(read<wire::ErrorMessage>(Bytes(), use));
  EXPECT_FALSE(read<wire::ErrorMessage>(Bytes::copy_of("1234567"), use));
  std::string ff(64, '\xff');
  EXPECT_FALSE(read<wire::ErrorMessage>(Bytes::copy_of(ff), use));
  Bytes whole = encode_error(sample());
  EXPECT_FALSE(read<wire::ErrorMessage>(Bytes::copy_of(whole.data(), whole.size() - 8), use));
}

TEST(Codec, NoAlteredMessageCrashesTheReader) {
  std::mt19937 random(1);
  const Bytes good = encode_error(sample());
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes bad = good.clone();
    for (int k = 0; k < 3; ++k) bad.data()[random() % bad.size()] = static_cast<std::byte>(random());
    const auto r = read<wire::ErrorMessage>(bad, [](wire::ErrorMessage::Reader m) {
      std::size_t n = text(m.getMessage()).size();
      for (const auto c : m.getContext()) n += text(c).size();
      return n;
    });
    refused += !r;
    (void)decode_error(bad);
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace shoal::runtime
