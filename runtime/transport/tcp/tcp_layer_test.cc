// Layers of one process, driven in turn by the test's thread: order, back-pressure, epochs, the ends of ranks, and strangers.
#include "runtime/transport/tcp/tcp_layer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/core/fd.h"
#include "runtime/transport/tcp/connecting/calls.h"
#include "runtime/transport/tcp/connecting/rank_address.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;
using Channel = MessageLayer::Channel;
using Transfer = MessageLayer::Transfer;
using Buffer = std::vector<std::byte>;

std::shared_ptr<const Tls> test_tls() {
  constexpr std::int64_t kDay = 24 * 3600;
  static const std::shared_ptr<const Tls> made = [] {
    const auto authority = make_authority("test", valid_from(std::time(nullptr), kDay)).value();
    const auto own = make_certificate(authority, "127.0.0.1", valid_from(std::time(nullptr), kDay)).value();
    return Tls::make(Fingerprint::from_certificate(authority.certificate).value(), own).value();
  }();
  return made;
}

Buffer pattern(std::size_t bytes, int seed) {
  Buffer out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed)) >> 3);
  return out;
}

// Connects to a rank without an introduction.
Fd stranger(const RankAddress& to) {
  Fd out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(to.port);
  inet_pton(AF_INET, to.host.c_str(), &at.sin_addr);
  EXPECT_EQ(connect(out.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  return out;
}

class TcpLayerTest : public testing::TestWithParam<bool> {
 protected:
  TcpOptions options(int rank, int world) {
    TcpOptions out;
    out.rank = rank;
    out.world_size = world;
    out.interface = "lo";
    out.piece_bytes = 4096;
    out.connecting = connecting_;
    if (GetParam()) out.tls = test_tls();
    out.exchange = [this, rank, world](const std::string& own) -> Result<std::vector<std::string>> {
      std::unique_lock lock(mutex_);
      texts_.resize(static_cast<std::size_t>(world));
      texts_[static_cast<std::size_t>(rank)] = own;
      if (++num_joined_ == world && on_exchange_) on_exchange_();
      joined_.notify_all();
      joined_.wait(lock, [&] { return num_joined_ == world; });
      return texts_;
    };
    return out;
  }
  void open(int world) {
    std::vector<std::thread> threads;
    layers_.resize(static_cast<std::size_t>(world));
    for (int r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        auto made = make_tcp_layer(options(r, world));
        ASSERT_TRUE(made) << made.error().to_string();
        layers_[static_cast<std::size_t>(r)] = *made;
      });
    }
    for (auto& thread : threads) thread.join();
  }
  MessageLayer& layer(int rank) { return *layers_[static_cast<std::size_t>(rank)]; }
  RankAddress address(int rank) { return RankAddress::parse(texts_[static_cast<std::size_t>(rank)], rank).value(); }

  void drive() {
    bool moved = false;
    for (auto& each : layers_) {
      if (each) moved |= each->progress();
    }
    if (moved) return;
    for (auto& each : layers_) {
      if (each) each->wait(1ms);
    }
  }
  template <class Done>
  void drive_until(const Done& done) {
    while (!done()) drive();
  }
  // Drives until nothing has moved for a while.
  void settle() {
    for (int quiet = 0; quiet < 20; ++quiet) {
      for (auto& each : layers_) {
        if (each && each->progress()) quiet = 0;
      }
      layers_[0]->wait(1ms);
    }
  }
  void send_and_receive(int from, int to, Channel channel, std::size_t bytes) {
    const Buffer data = pattern(bytes, from);
    Buffer got(bytes);
    Transfer sent, received;
    layer(to).receive(from, channel, got, received);
    layer(from).send(to, channel, data, sent);
    drive_until([&] { return sent.complete() && received.complete(); });
    EXPECT_EQ(received.bytes, bytes);
    EXPECT_EQ(got, data);
  }

  std::mutex mutex_;
  std::condition_variable joined_;
  int num_joined_ = 0;
  std::vector<std::string> texts_;
  std::function<void()> on_exchange_;  // before a rank makes connections
  Duration connecting_ = 30s;
  std::vector<std::shared_ptr<MessageLayer>> layers_;
};

TEST_P(TcpLayerTest, MovesMessagesOfAnySizeInOrder) {
  open(3);
  for (const auto channel : {Channel::kHeaders, Channel::kData, Channel::kControl}) {
    for (const std::size_t bytes : {0, 1, 4096, 4097, 1 << 20}) send_and_receive(0, 2, channel, bytes);
  }
  constexpr int kMessages = 50;
  std::vector<Buffer> data, got;
  std::vector<Transfer> sent(kMessages), received(kMessages);
  for (int i = 0; i < kMessages; ++i) {
    data.push_back(pattern(static_cast<std::size_t>(1 + i * 1777 % 30000), i));
    got.emplace_back(30000);
  }
  for (std::size_t i = 0; i < kMessages; ++i) layer(1).send(0, Channel::kData, data[i], sent[i]);
  for (std::size_t i = 0; i < kMessages; ++i) layer(0).receive(1, Channel::kData, got[i], received[i]);
  const auto done = [](const Transfer& t) { return t.complete(); };
  drive_until([&] { return std::all_of(sent.begin(), sent.end(), done) && std::all_of(received.begin(), received.end(), done); });
  for (std::size_t i = 0; i < kMessages; ++i) {
    got[i].resize(received[i].bytes);
    EXPECT_EQ(got[i], data[i]) << i;
  }
}

TEST_P(TcpLayerTest, AMessageWithoutAReceiveStaysWithItsSenderAndBlocksNoOtherChannel) {
  open(2);
  const Buffer data = pattern(64 << 20, 1);  // more than the kernel's buffers hold
  Buffer got(data.size());
  Transfer sent, received;
  layer(0).send(1, Channel::kData, data, sent);
  settle();
  EXPECT_EQ(sent.state, Transfer::State::kPending);
  send_and_receive(0, 1, Channel::kHeaders, 100);
  send_and_receive(0, 1, Channel::kResults, 1 << 20);
  send_and_receive(1, 0, Channel::kData, 1 << 20);
  layer(1).receive(0, Channel::kData, got, received);
  drive_until([&] { return sent.complete() && received.complete(); });
  EXPECT_EQ(got, data);
}

TEST_P(TcpLayerTest, ALongerMessageThanItsReceiveFailsThatReceiveOnly) {
  open(2);
  const Buffer data = pattern(20000, 1);
  Buffer got(10000);
  Transfer sent, received;
  layer(1).receive(0, Channel::kData, got, received);
  layer(0).send(1, Channel::kData, data, sent);
  drive_until([&] { return sent.complete() && received.state != Transfer::State::kPending; });
  EXPECT_EQ(received.state, Transfer::State::kFailed);
  EXPECT_EQ(got, Buffer(10000));
  send_and_receive(0, 1, Channel::kData, 5000);
}

TEST_P(TcpLayerTest, TheEndOfARankIsNoticed) {
  open(3);
  layers_[1].reset();
  drive_until([&] { return layer(0).lost(1) && layer(2).lost(1); });
  EXPECT_NE(layer(0).lost(1)->message().find("127.0.0.1"), std::string::npos);
  Transfer sent;
  const Buffer data(10);
  layer(0).send(1, Channel::kData, data, sent);
  EXPECT_EQ(sent.state, Transfer::State::kFailed);
  EXPECT_FALSE(layer(0).lost(2));
  send_and_receive(0, 2, Channel::kData, 100000);
}

TEST_P(TcpLayerTest, WhatARankSentBeforeItsEndIsReceivedAfterIt) {
  open(2);
  const Buffer data = pattern(30000, 1);
  Buffer got(data.size()), unread(100);
  Transfer sent, received, other;
  layer(0).send(1, Channel::kData, unread, other);  // rank 1 ends with unread bytes, so that its kernel resets the connection
  layer(1).send(0, Channel::kData, data, sent);
  layer(1).flush(10s);
  EXPECT_TRUE(sent.complete());
  layers_[1].reset();
  drive_until([&] { return layer(0).lost(1).has_value(); });
  layer(0).receive(1, Channel::kData, got, received);
  drive_until([&] { return received.complete(); });
  EXPECT_EQ(got, data);
}

TEST_P(TcpLayerTest, AnEpochReceivesNothingOfTheOneBefore) {
  open(2);
  const Buffer before = pattern(2000, 1), after = pattern(2000, 2);
  Buffer got(2000), rest(2000);
  Transfer sent, late, received, failed;
  for (const bool connections : {true, false}) {
    layer(1).receive(0, Channel::kResults, rest, failed);
    layer(0).send(1, Channel::kData, before, sent);
    layer(0).flush(10s);
    for (int r = 0; r < 2; ++r) connections ? layer(r).reset({}) : layer(r).begin_epoch();
    EXPECT_EQ(failed.state, Transfer::State::kFailed);
    layer(1).receive(0, Channel::kData, got, received);
    layer(0).send(1, Channel::kData, after, late);
    drive_until([&] { return received.complete(); });
    EXPECT_EQ(got, after);
  }
}

TEST_P(TcpLayerTest, ARankThatBeginsAnEpochFirstIsNotLost) {
  open(3);
  for (const int first : {0, 2}) {
    layer(first).reset({});
    Buffer got(3000);
    Transfer received, sent;
    layer(first).receive(1, Channel::kData, got, received);
    settle();
    for (int r = 0; r < 3; ++r) {
      if (r != first) {
        EXPECT_FALSE(layer(r).lost(first));
      }
    }
    for (int r = 0; r < 3; ++r) {
      if (r != first) layer(r).reset({});
    }
    const Buffer data = pattern(3000, first);
    layer(1).send(first, Channel::kData, data, sent);
    drive_until([&] { return received.complete() && sent.complete(); });
    EXPECT_EQ(got, data);
    for (int r = 0; r < 3; ++r) send_and_receive(r, (r + 1) % 3, Channel::kControl, 100);
  }
}

TEST_P(TcpLayerTest, ARankThatIsGoneStaysLostInTheNextEpoch) {
  open(3);
  layers_[2].reset();
  drive_until([&] { return layer(0).lost(2) && layer(1).lost(2); });
  const std::vector<int> gone{2};
  for (int r = 0; r < 2; ++r) layer(r).reset(gone);
  send_and_receive(0, 1, Channel::kData, 50000);
  EXPECT_TRUE(layer(0).lost(2) && layer(1).lost(2));
  // A rank that ended unseen is found when it is called again.
  layers_[1].reset();
  layer(0).reset(gone);
  drive_until([&] { return layer(0).lost(1).has_value(); });
}

// More silent callers than may wait, before and while the ranks connect. Some of them write.
TEST_P(TcpLayerTest, StrangersDoNoHarm) {
  std::vector<Fd> strangers;
  connecting_ = Gate::kLimit / 2;  // does not suffice if the silent ones are waited for
  on_exchange_ = [&] {
    for (std::size_t i = 0; i < 6 * Gate::kMaxCallers; ++i) {
      strangers.push_back(stranger(address(static_cast<int>(i % 2))));
      const std::string text = i % 3 == 0 ? std::string(200, 'x') : i % 9 == 1 ? "GET / HTTP/1.1\r\n\r\n" : "";
      if (!text.empty()) (void)!send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  };
  open(2);
  send_and_receive(0, 1, Channel::kData, 100000);
  const Fd late = stranger(address(0));
  const std::string wrong(Introduction::kBytes, 'y');
  ASSERT_GT(send(late.get(), wrong.data(), wrong.size(), MSG_NOSIGNAL), 0);
  char byte;
  drive_until([&] { return recv(late.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET; });
  send_and_receive(1, 0, Channel::kData, 100000);
  EXPECT_FALSE(layer(0).lost(1) || layer(1).lost(0));
}

TEST_P(TcpLayerTest, ACallerWithAnotherTokenIsRefused) {
  open(2);
  auto hostile = options(1, 2);
  hostile.connecting = 500ms;
  hostile.exchange = [&](const std::string& own) -> Result<std::vector<std::string>> {
    auto real = address(0);
    real.token = Token();
    return std::vector<std::string>{real.text(), own};
  };
  std::optional<Result<std::shared_ptr<MessageLayer>>> made;
  std::thread other([&] { made = make_tcp_layer(std::move(hostile)); });
  std::thread driver([&] {
    for (int i = 0; i < 200; ++i) drive();
  });
  other.join();
  driver.join();
  EXPECT_FALSE(*made);
  send_and_receive(0, 1, Channel::kData, 100000);
}

// A rank whose host accepts connections, while its process answers none.
class SilentRank {
 public:
  explicit SilentRank(bool listens = true) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(listens ? listen(socket_.get(), 100) : 0, 0);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &length);
    address_.host = "127.0.0.1";
    address_.port = ntohs(at.sin_port);
  }
  std::string address() const { return address_.text(); }

 private:
  const Fd socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RankAddress address_;
};

TEST_P(TcpLayerTest, ARankThatConnectsGivesUpOnTheWordOfADeath) {
  const SilentRank other;
  auto mine = options(0, 2);
  mine.connecting = 1h;
  mine.exchange = [&](const std::string& own) -> Result<std::vector<std::string>> { return std::vector{own, other.address()}; };
  int asked = 0;
  mine.may_go_on = [&]() -> Result<void> {
    if (++asked < 3) return {};
    return fail(unavailable("rank 1 was killed").with_reason("ActorDied"));
  };
  const auto made = make_tcp_layer(std::move(mine));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().reason(), "ActorDied") << made.error().to_string();
  EXPECT_EQ(asked, 3);
}

TEST_P(TcpLayerTest, ARankThatConnectsGivesUpOnceAnyOtherIsGone) {
  const SilentRank late, gone(false);
  auto mine = options(0, 3);
  mine.connecting = 1h;
  mine.exchange = [&](const std::string& own) -> Result<std::vector<std::string>> {
    return std::vector{own, late.address(), gone.address()};
  };
  const auto made = make_tcp_layer(std::move(mine));
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().to_string().find("rank 2"), std::string::npos) << made.error().to_string();
}

INSTANTIATE_TEST_SUITE_P(All, TcpLayerTest, testing::Bool(), [](const auto& tested) { return tested.param ? "tls" : "tcp"; });

// epoll reports an end once: a read that has bytes from before it asks for another read.
TEST(ByteStreamTest, AnEndBehindBytesIsReadNext) {
  for (const auto& tls : {std::shared_ptr<const Tls>(), test_tls()}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    ByteStream reader(Fd(fds[0]), tls, TlsSession::Side::kCalls);
    std::optional<ByteStream> writer(std::in_place, Fd(fds[1]), tls, TlsSession::Side::kListens);
    for (bool done = false; !done;) {
      done = reader.handshake().value();
      done &= writer->handshake().value();
    }
    const Buffer data(10);
    Buffer got(100);
    ASSERT_EQ(writer->write(data, {})->bytes, data.size());
    writer.reset();
    std::size_t bytes = 0;
    for (bool ended = false; !ended;) {
      const auto moved = reader.read(std::span(got).subspan(bytes), {}, /*last=*/true);
      ended = !moved || moved->ended;
      if (ended) break;
      bytes += moved->bytes;
      ASSERT_FALSE(moved->blocked);
    }
    EXPECT_EQ(bytes, data.size());
  }
}

class DescriptorLimit : public testing::Test {
 protected:
  DescriptorLimit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimit() override { set(before_.rlim_cur); }
  void set(rlim_t soft) {
    const rlimit limit{soft, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_{};
};

TEST_F(DescriptorLimit, IsRaisedByALayer) {
  set(256);
  TcpOptions options;
  options.interface = "lo";
  options.exchange = [](const std::string& own) -> Result<std::vector<std::string>> { return std::vector<std::string>{own}; };
  ASSERT_TRUE(make_tcp_layer(std::move(options)));
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

TEST_F(DescriptorLimit, IsNamedByACallAndByAGateThatTryAgain) {
  Poller poller;
  ASSERT_TRUE(poller.open());
  Gate gate(poller, nullptr);
  RankAddress address;
  address.host = "127.0.0.1";
  ASSERT_TRUE(gate.open(address));
  std::optional<Fd> caller(stranger(address));
  const auto advance = [&] {
    poller.poll(1s);
    poller.advance_queued();
  };
  set(3);
  const OutgoingCall call(poller, address, address, nullptr, {});
  EXPECT_EQ(call.state(), OutgoingCall::State::kHungUp);
  EXPECT_EQ(call.why().reason(), "NoDescriptors");
  advance();
  ASSERT_TRUE(gate.obstacle());
  EXPECT_NE(gate.obstacle()->to_string().find("limit of open files"), std::string::npos);
  set(before_.rlim_cur);
  gate.tidy(std::chrono::steady_clock::now());
  advance();
  EXPECT_EQ(gate.num_callers(), 1u);
  EXPECT_FALSE(gate.obstacle());
}

TEST(TcpOptionsTest, ThatAreWrongAreRefused) {
  const auto refused = [](TcpOptions options, const std::string& text) {
    options.exchange = [](const std::string& own) -> Result<std::vector<std::string>> { return std::vector<std::string>{own}; };
    const auto made = make_tcp_layer(std::move(options));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
    EXPECT_NE(made.error().to_string().find(text), std::string::npos) << made.error().to_string();
  };
  TcpOptions none, pieces, interface, tls;
  none.connections = 0;
  refused(none, "0 connections");
  pieces.piece_bytes = 1 << 30;
  refused(pieces, "pieces of 1073741824 bytes");
  interface.interface = "eth99";
  refused(interface, "no interface 'eth99'");
  refused(interface, "lo");
  tls.tls = Tls::make(Fingerprint()).value();
  refused(tls, "certificate");
}

}  // namespace
}  // namespace shoal::runtime
