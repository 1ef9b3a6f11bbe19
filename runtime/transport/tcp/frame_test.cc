// Frames and queues: what a peer sends changes memory only within the receives that were posted for it.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/transport/tcp/queues.h"

namespace shoal::runtime {
namespace {

using Channel = MessageLayer::Channel;
using Bytes = std::array<std::byte, Frame::kBytes>;

Frame piece(std::uint64_t sequence, std::uint64_t offset, std::uint32_t bytes, std::uint64_t total) {
  Frame frame;
  frame.channel = Channel::kData;
  frame.epoch = 7;
  frame.sequence = sequence;
  frame.offset = offset;
  frame.bytes = bytes;
  frame.total = total;
  return frame;
}

Bytes bytes_of(const Frame& frame) {
  Bytes out;
  encode(frame, out);
  return out;
}

TEST(Frame, IsDecodedAsItWasEncoded) {
  for (const auto& frame : {piece(0, 0, 0, 0), piece(1, 0, 1, 1), piece(3, 4096, 1024, 1 << 20), piece(~0ull, 5, 1, 6)}) {
    EXPECT_EQ(decode_frame(bytes_of(frame)).value(), frame);
  }
}

TEST(Frame, BeyondItsBoundsIsRefused) {
  const auto refused = [](const Frame& frame) {
    const auto decoded = decode_frame(bytes_of(frame));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kDataLoss);
    EXPECT_EQ(decoded.error().reason(), "MalformedFrame");
  };
  refused(piece(0, 0, 2, 1));
  refused(piece(0, 1, 1, 1));
  refused(piece(0, 2, 0, 1));
  refused(piece(0, 0, 0, 1));  // an empty piece: its message would never end
  refused(piece(0, ~0ull, 2, 1));
  refused(piece(0, 0, Frame::kMaxPiece + 1, 1ull << 30));
  refused(piece(0, 0, 1, Frame::kMaxMessage + 1));
  auto other = bytes_of(piece(0, 0, 1, 1));
  other[0] ^= std::byte{1};
  EXPECT_FALSE(decode_frame(other));
}

// Random changes of valid headers, and random bytes: each either is refused or lies within its message.
TEST(Frame, OfRandomBytesStaysWithinItsMessage) {
  std::mt19937_64 random(5);
  int decoded = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = bytes_of(piece(random() % 4, random() % 64, static_cast<std::uint32_t>(random() % 64), random() % 128));
    for (auto changes = random() % 4; changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (i % 8 == 0) std::generate(bytes.begin() + 4, bytes.end(), [&] { return static_cast<std::byte>(random()); });
    const auto frame = decode_frame(bytes);
    if (!frame) continue;
    ++decoded;
    ASSERT_LE(frame->bytes, Frame::kMaxPiece);
    ASSERT_LE(frame->total, Frame::kMaxMessage);
    ASSERT_LE(frame->offset, frame->total);
    ASSERT_LE(frame->bytes, frame->total - frame->offset);
  }
  EXPECT_GT(decoded, 1000);
}

// Pieces of a hostile sender, which are well-formed one by one: no byte beside the receives changes, and each receive ends at most once.
TEST(PostedReceives, OfAHostileSenderChangeNoOtherMemory) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    PostedReceives receives;
    constexpr std::size_t kSize = 64, kPosted = 3;
    std::vector<std::byte> memory(kSize * (2 * kPosted + 1));
    std::array<Transfer, kPosted> transfers;
    for (std::size_t i = 0; i < kPosted; ++i) receives.post(std::span(memory).subspan((2 * i + 1) * kSize, kSize), transfers[i]);
    for (int k = 0; k < 40; ++k) {
      const auto total = random() % 80;
      const auto offset = total == 0 ? 0 : random() % total;
      const auto bytes = total == 0 ? 0 : 1 + random() % (total - offset);
      const auto frame = piece(random() % 5, offset, static_cast<std::uint32_t>(bytes), total);
      const auto room = receives.room(frame);
      if (!room) break;  // the connection ends
      if (!*room) continue;
      ASSERT_TRUE((*room)->size() == bytes || (*room)->empty());
      std::fill((*room)->begin(), (*room)->end(), std::byte{0xff});
      (void)receives.arrived(frame);
    }
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (i / kSize % 2 == 0) {
        ASSERT_EQ(memory[i], std::byte{});
      }
    }
  }
}

TEST(PostedReceives, GetPiecesInAnyOrderAndEndInOrderOfTheirMessages) {
  PostedReceives receives;
  std::array<std::byte, 8> first{}, second{};
  Transfer one, two;
  receives.post(first, one);
  EXPECT_FALSE(receives.room(piece(1, 0, 4, 4)).value());  // no receive yet
  receives.post(second, two);
  const auto receive = [&](const Frame& frame) {
    EXPECT_EQ(receives.room(frame).value()->size(), frame.bytes);
    return receives.arrived(frame);
  };
  EXPECT_TRUE(receive(piece(1, 0, 4, 4)));
  EXPECT_TRUE(two.complete());
  EXPECT_EQ(two.bytes, 4u);
  EXPECT_FALSE(receive(piece(0, 4, 4, 8)));
  EXPECT_FALSE(one.complete());
  EXPECT_TRUE(receive(piece(0, 0, 4, 8)));
  EXPECT_TRUE(one.complete());
  EXPECT_FALSE(receives.room(piece(0, 0, 4, 8)));  // the same piece a second time
}

TEST(PostedReceives, RefuseAPieceThatComesTwiceOrHasAnotherTotal) {
  PostedReceives receives;
  std::array<std::byte, 8> data{};
  Transfer transfer;
  receives.post(data, transfer);
  EXPECT_TRUE(receives.room(piece(0, 0, 8, 8)));
  EXPECT_FALSE(receives.room(piece(0, 0, 8, 8)));  // also before the first one has arrived
  EXPECT_FALSE(receives.room(piece(0, 0, 0, 0)));
  EXPECT_EQ(transfer.state, Transfer::State::kPending);
}

TEST(PostedReceives, OfALongerMessageFailAndDiscardIt) {
  PostedReceives receives;
  std::array<std::byte, 4> data{};
  Transfer transfer;
  receives.post(data, transfer);
  for (const std::uint64_t offset : {0, 4}) {
    const auto frame = piece(0, offset, 4, 8);
    EXPECT_TRUE(receives.room(frame).value()->empty());
    EXPECT_EQ(receives.arrived(frame), offset == 4);
  }
  EXPECT_EQ(transfer.state, Transfer::State::kFailed);
  EXPECT_FALSE(receives.room(piece(1, 0, 1, 1)).value());  // the next message, which has no receive
}

TEST(QueuedSends, AreTakenInPiecesAndEndWithTheLast) {
  QueuedSends sends(Channel::kData);
  const std::array<std::byte, 10> data{};
  Transfer long_one, empty_one;
  sends.push(data, long_one);
  sends.push(std::span(data).first(0), empty_one);
  std::vector<Frame> frames;
  while (sends.has_piece()) frames.push_back(sends.take(7, 4).frame);
  EXPECT_EQ(frames, (std::vector<Frame>{piece(0, 0, 4, 10), piece(0, 4, 4, 10), piece(0, 8, 2, 10), piece(1, 0, 0, 0)}));
  EXPECT_TRUE(sends.written(frames[3]));
  EXPECT_FALSE(sends.written(frames[1]));
  EXPECT_FALSE(sends.written(frames[2]));
  EXPECT_FALSE(long_one.complete());
  EXPECT_TRUE(sends.written(frames[0]));
  EXPECT_TRUE(long_one.complete() && empty_one.complete());
  EXPECT_TRUE(sends.empty());
}

TEST(QueuedSends, FailWhenTheyAreCleared) {
  QueuedSends sends(Channel::kData);
  const std::array<std::byte, 4> data{};
  Transfer transfer;
  sends.push(data, transfer);
  sends.clear();
  EXPECT_EQ(transfer.state, Transfer::State::kFailed);
  sends.push(data, transfer);
  EXPECT_EQ(sends.take(7, 4).frame.sequence, 0u);
}

}  // namespace
}  // namespace shoal::runtime
