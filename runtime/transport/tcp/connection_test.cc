// A connection whose other end writes what it likes: the connection ends, and no memory beside the posted receives changes.
#include "runtime/transport/tcp/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

using Channel = MessageLayer::Channel;

struct Events final : ConnectionEvents {
  void transfer_ended() override { ++num_ended; }
  void broke(int, const Error& why) override { reason = why.reason(); }
  void ended(int, const Error& why) override { reason = why.reason(); }
  void departed(int) override { has_departed = true; }
  int num_ended = 0;
  std::string reason;
  bool has_departed = false;
};

struct Ends {
  explicit Ends(Channel channel) : sends(channel) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    EXPECT_TRUE(poller.open());
    far = Fd(fds[1]);
    near.emplace(Connection::Place{poller, events, 1}, ByteStream(Fd(fds[0]), nullptr, TlsSession::Side::kListens), channel, receives,
                 sends, 7u, 1024u);
  }
  void write(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void write(const Frame& frame) {
    std::array<std::byte, Frame::kBytes> bytes;
    encode(frame, bytes);
    write(bytes);
  }
  void turn() {
    poller.poll({});
    poller.advance_queued();
  }
  Events events;
  Poller poller;
  PostedReceives receives;
  QueuedSends sends;
  Fd far;
  std::optional<Connection> near;
};

Frame frame_of(Channel channel, std::uint32_t epoch, std::uint64_t sequence, std::uint32_t bytes) {
  Frame out;
  out.channel = channel;
  out.epoch = epoch;
  out.sequence = sequence;
  out.bytes = bytes;
  out.total = bytes;
  return out;
}

TEST(Connection, EndsAtAFrameThatIsMalformedOrOfAnotherChannel) {
  std::array<std::byte, Frame::kBytes> garbage{};
  for (const int fault : {0, 1, 2}) {
    Ends ends(Channel::kData);
    std::array<std::byte, 8> memory;
    Transfer transfer;
    ends.receives.post(memory, transfer);
    if (fault == 0) ends.write(garbage);
    if (fault == 1) ends.write(frame_of(Channel::kControl, 7, 0, 8));
    if (fault == 2) {
      Frame departs = frame_of(Channel::kData, 7, 0, 0);
      departs.departs = true;
      ends.write(departs);
    }
    ends.turn();
    EXPECT_EQ(ends.events.reason, "MalformedFrame");
  }
}

TEST(Connection, DiscardsPiecesOfEarlierEpochsAndHoldsThoseOfLaterOnes) {
  for (const auto channel : {Channel::kData, Channel::kHeaders}) {
    Ends ends(channel);
    std::array<std::byte, 8> memory{}, data;
    data.fill(std::byte{1});
    Transfer transfer;
    ends.receives.post(memory, transfer);
    ends.write(frame_of(channel, 6, 0, 8));
    ends.write(data);
    ends.write(frame_of(channel, 8, 0, 8));
    data.fill(std::byte{2});
    ends.write(data);
    ends.turn();
    EXPECT_EQ(transfer.state, Transfer::State::kPending);
    EXPECT_EQ(memory[0], std::byte{});
    ends.receives.clear();
    ends.receives.post(memory, transfer);
    ends.near->begin_epoch(8);
    ends.turn();
    EXPECT_TRUE(transfer.complete());
    EXPECT_EQ(memory, data);
  }
}

// An epoch begins in the middle of a piece: the rest is discarded, and the next receive gets the next message.
TEST(Connection, DiscardsTheRestOfAPieceWhenAnEpochBegins) {
  Ends ends(Channel::kData);
  std::array<std::byte, 8> memory{}, data;
  data.fill(std::byte{1});
  std::vector<std::byte> before(16 << 10);
  Transfer transfer;
  ends.receives.post(before, transfer);
  ends.write(frame_of(Channel::kData, 7, 0, 16 << 10));
  ends.turn();
  ends.receives.clear();
  ends.near->begin_epoch(8);
  const std::vector<std::byte> rest(16 << 10, std::byte{3});
  ends.receives.post(memory, transfer);
  ends.write(rest);
  ends.write(frame_of(Channel::kData, 8, 0, 8));
  ends.write(data);
  ends.turn();
  EXPECT_TRUE(transfer.complete());
  EXPECT_EQ(memory, data);
  EXPECT_EQ(before, std::vector<std::byte>(before.size()));
}

// A forked child holds the sockets too, as the duplicate does here.
TEST(Connection, ThatHasEndedIsNotPolledWhileAnotherProcessHoldsItsSocket) {
  Ends ends(Channel::kData);
  ends.turn();
  const Fd held(fcntl(ends.near->socket(), F_DUPFD_CLOEXEC, 0));
  ends.near.reset();
  ends.write(frame_of(Channel::kData, 7, 0, 8));
  ends.poller.poll({});
  EXPECT_FALSE(ends.poller.has_queued());
}

// Streams of frames, some of them changed, in random portions.
TEST(Connection, SurvivesRandomStreams) {
  std::mt19937_64 random(17);
  int broken = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto channel = round % 2 == 0 ? Channel::kData : Channel::kMessages;
    Ends ends(channel);
    constexpr std::size_t kSize = 512, kPosted = 4;
    std::vector<std::byte> memory(kSize * (2 * kPosted + 1));
    std::array<Transfer, kPosted> transfers;
    for (std::size_t i = 0; i < kPosted; ++i) ends.receives.post(std::span(memory).subspan((2 * i + 1) * kSize, kSize), transfers[i]);
    std::vector<std::byte> stream;
    for (std::uint64_t sequence = 0; sequence < 5; ++sequence) {
      const auto bytes = static_cast<std::uint32_t>(random() % 600);
      const auto at = stream.size();
      stream.resize(at + Frame::kBytes + bytes, std::byte{0xff});
      encode(frame_of(channel, random() % 8 == 0 ? 6u : 7u, sequence, bytes),
             std::span<std::byte, Frame::kBytes>(stream.data() + at, Frame::kBytes));
    }
    for (auto changes = random() % 3; changes > 0; --changes) stream[random() % stream.size()] = static_cast<std::byte>(random());
    for (std::size_t at = 0; at < stream.size();) {
      const auto n = std::min<std::size_t>(1 + random() % 400, stream.size() - at);
      ends.write(std::span(stream).subspan(at, n));
      at += n;
      ends.turn();
    }
    if (round % 4 == 0) ends.near->begin_epoch(8);
    ends.far.reset();
    ends.turn();
    broken += ends.events.reason == "MalformedFrame";
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (i / kSize % 2 == 0) {
        ASSERT_EQ(memory[i], std::byte{}) << round;
      }
    }
  }
  EXPECT_GT(broken, 100);
}

}  // namespace
}  // namespace shoal::runtime
