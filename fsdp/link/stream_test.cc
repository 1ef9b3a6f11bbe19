#include "fsdp/link/stream.h"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "fsdp/link/updates.h"
#include "runtime/transport/conformance/memory_layer.h"

namespace shoal::fsdp {
namespace {

using Channel = runtime::MessageLayer::Channel;
using Bytes = std::vector<std::byte>;
constexpr StreamChannels kChannels{Channel::kMessages, Channel::kData};

Bytes numbers(std::size_t count, int seed) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(seed));
  return out;
}

TEST(Messages, LargePiecesAreCutAndSmallOnesShareAMessage) {
  const std::vector<std::size_t> sizes{10, StreamSender::kMessageBytes * 2 + 5, 0, 100, 50'000, 20};
  const auto messages = messages_of(sizes);
  std::vector<std::size_t> sent(sizes.size());
  std::size_t shared = 0;
  for (const Message& m : messages) {
    shared += m.size() > 1 ? 1 : 0;
    for (const Fragment& f : m) {
      EXPECT_EQ(f.offset, sent[f.piece]);
      EXPECT_LE(f.bytes, StreamSender::kMessageBytes);
      sent[f.piece] += f.bytes;
    }
  }
  EXPECT_EQ(sent, sizes);
  EXPECT_EQ(shared, 1u);  // 10, the rest of 5, 100 and 20 bytes
}

// Two ranks of one thread.
class StreamTest : public testing::Test {
 protected:
  void advance() {
    for (int i = 0; i < 1000; ++i) {
      for (auto& layer : {sender_layer_, receiver_layer_}) layer->progress();
      sender_.advance();
      if (receiver_) receiver_->advance();
    }
  }
  void receive(StreamReceiver::Handler handler) {
    receiver_ = std::make_unique<StreamReceiver>(*receiver_layer_, 0, kChannels, 16, std::move(handler));
    receiver_->start();
  }

  runtime::MemoryNetwork network_{2};
  std::shared_ptr<runtime::MessageLayer> sender_layer_ = network_.join(0), receiver_layer_ = network_.join(1);
  StreamSender sender_{*sender_layer_, 1, kChannels};
  std::unique_ptr<StreamReceiver> receiver_;
};

TEST_F(StreamTest, RecordsArriveInOrderInTheMemoryThatTheirHeaderNames) {
  const Bytes large = numbers(3 * StreamSender::kMessageBytes + 17, 1), small = numbers(100, 2);
  Bytes computed = numbers(StreamSender::kMessageBytes + 9, 3);
  Bytes got_large(large.size()), got_small(small.size()), got_computed(computed.size());
  std::vector<int> records;
  int header = 0;
  receive({[&](std::span<const std::byte> bytes) -> std::optional<std::vector<std::span<std::byte>>> {
             std::memcpy(&header, bytes.data(), sizeof header);
             if (header == 1) return std::vector<std::span<std::byte>>{got_large, got_small, got_computed};
             return std::vector<std::span<std::byte>>();
           },
           [&] { records.push_back(header); }});
  const auto begin = [&](int number, std::vector<OutgoingPiece> pieces) {
    const auto* raw = reinterpret_cast<const std::byte*>(&number);
    sender_.begin({raw, raw + sizeof number}, std::move(pieces));
    advance();
    ASSERT_TRUE(sender_.idle());
  };
  const auto compute = [&](std::size_t offset, std::span<std::byte> out) { std::memcpy(out.data(), computed.data() + offset, out.size()); };
  begin(1, {{large.size(), large.data()}, {small.size(), small.data()}, {computed.size(), nullptr, compute}});
  begin(2, {});
  EXPECT_EQ(records, (std::vector<int>{1, 2}));
  EXPECT_EQ(got_large, large);
  EXPECT_EQ(got_small, small);
  EXPECT_EQ(got_computed, computed);
}

TEST_F(StreamTest, AWrongHeaderEndsTheStream) {
  receive({[](std::span<const std::byte>) { return std::nullopt; }, [] { FAIL(); }});
  const Bytes data = numbers(10, 1);
  sender_.begin(numbers(4, 0), {{data.size(), data.data()}});
  advance();
  EXPECT_TRUE(receiver_->ended());
}

TEST_F(StreamTest, ARecordToALostRankEnds) {
  network_.kill(1, "a test");
  const Bytes data = numbers(StreamSender::kMessageBytes * 9, 1);
  sender_.begin(numbers(4, 0), {{data.size(), data.data()}});
  advance();
  EXPECT_TRUE(sender_.idle());
}

TEST(Updates, AMessageThatIsCutOrTooLongIsRefused) {
  const std::vector<std::uint8_t> present{1, 0, 1};
  Words words;
  words.entered = 7;
  for (const auto& message :
       {encode(words), encode(Publication{5, 2, 1, 0.5, present}), encode_gone(3, "out of memory"), encode(UpdateKind::kStuck)}) {
    ASSERT_TRUE(decode_update(message));
    for (std::size_t n = 0; n < message.size(); ++n) {
      const auto cut = decode_update(std::span(message).first(n));
      // A publication without some of its parameters is refused by its receiver, which has the unit.
      EXPECT_TRUE(!cut || cut->kind == UpdateKind::kPublication) << n;
    }
  }
  auto longer = encode(words);
  longer.push_back({});
  EXPECT_FALSE(decode_update(longer));
  EXPECT_FALSE(decode_update(numbers(64, 200)));
  const auto publication = encode(Publication{5, 2, 1, 0.5, present});
  const auto got = decode_update(publication)->publication;
  EXPECT_EQ(got.sequence, 5u);
  EXPECT_EQ(std::vector<std::uint8_t>(got.present.begin(), got.present.end()), present);
}

}  // namespace
}  // namespace shoal::fsdp
