// Peers that read slowly, or not at all, and hosts that answer nothing.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>

#include <gtest/gtest.h>

#include "runtime/net/socket/socket_fixture.h"
#include "runtime/sim/sim_clock.h"

namespace shoal::runtime {
namespace {

// Connects a raw socket to `side`, with a hello. The test reads and writes it by itself, so it decides when answers are read.
Fd raw_caller(Side& side, const Token& token, const Endpoint& to) {
  Fd out = raw_connect(to);
  HelloMessage message;
  const auto receive = [&] {
    bool come = false;
    side.run_until([&] { return come |= recv(out.get(), message.data(), message.size(), MSG_DONTWAIT) == ssize_t{sizeof message}; });
  };
  receive();
  HelloCaller hello(token, {}, side.role, *side.random);
  const HelloMessage answer = hello.answer(message).value();
  EXPECT_EQ(::send(out.get(), answer.data(), answer.size(), 0), ssize_t{sizeof answer});
  receive();
  EXPECT_TRUE(hello.conclude(message));
  return out;
}
void add_request(std::vector<std::byte>& to, std::uint64_t number, std::uint32_t bytes = 0) {
  const auto head = FrameHeader{0, bytes, number, Side::kEcho, FrameKind::kRequest, 0}.encode();
  to.insert(to.end(), head.begin(), head.end());
  to.insert(to.end(), bytes, std::byte{1});
}
// Sends all, while the side runs.
void send_all(Side& side, const Fd& caller, std::span<const std::byte> bytes) {
  side.run_until([&] {
    const ssize_t n = ::send(caller.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
    return bytes.empty();
  });
}
// Reads so many bytes, while the side runs.
void read_bytes(Side& side, const Fd& caller, std::size_t left) {
  std::vector<char> room(1 << 20);
  side.run_until([&] {
    const ssize_t n = recv(caller.get(), room.data(), std::min(room.size(), left), MSG_DONTWAIT);
    if (n > 0) left -= static_cast<std::size_t>(n);
    return left == 0;
  });
}
void turn(Side& side, int times = 100) {
  for (int i = 0; i < times; ++i) side.loop.poll_one();
}

TEST_P(SocketTest, APeerThatDoesNotReadItsAnswersSendsNoFurtherRequests) {
  SocketOptions options = options_of(GetParam());
  options.budget.max_unsent_bytes = 8 << 20;
  options.rings.bytes = 0;
  Side side(token_, options, GetParam().role);
  const Fd caller = raw_caller(side, token_, side.listen(Endpoint::unix_at(unique_name())));
  constexpr std::uint32_t kAsked = 500, kAnswerBytes = 100'000;
  side.answer_bytes = kAnswerBytes;
  std::vector<std::byte> asked;
  for (std::uint32_t i = 1; i <= kAsked; ++i) add_request(asked, i);
  send_all(side, caller, asked);
  side.run_until([&] { return side.requests > 0; });
  turn(side);
  EXPECT_LT(side.requests, 30);  // about 1 MiB of answers
  read_bytes(side, caller, std::size_t{kAsked} * (FrameHeader::kBytes + kAnswerBytes));
  EXPECT_EQ(side.requests, int{kAsked});
}

// Between hosts a large value travels in its frame. A value that waits alone may be larger than max_unsent_bytes.
TEST_P(SocketTest, APeerThatReadsOneLargeAnswerSlowlyIsNotRefused) {
  SimClock timers;
  SocketOptions options = options_of(GetParam());
  options.budget.max_unsent_bytes = 8 << 20;
  options.unanswered = 1000h;  // this clock passes faster than the kernel answers
  Side side(token_, options, GetParam().role, &timers);
  const Fd caller = raw_caller(side, token_, side.listen(Endpoint::tcp("127.0.0.1", 0)));
  side.answer_bytes = 32 << 20;
  std::vector<std::byte> asked;
  add_request(asked, 1);
  send_all(side, caller, asked);
  side.run_until([&] { return timers.num_timers() == 2; });  // the pause has begun; the other timer watches the host
  for (int period = 0; period < 5; ++period) {
    read_bytes(side, caller, 1 << 20);
    timers.fire_next();
    turn(side, 10);
    ASSERT_TRUE(side.closed.empty()) << side.closed[0];
  }
  side.run_until([&] {
    if (timers.num_timers() > 0) timers.fire_next();
    return !side.closed.empty();
  });
  EXPECT_NE(side.closed[0].find("AnswersNotRead"), std::string::npos) << side.closed[0];
}

TEST_P(SocketTest, AnswersToAnotherHostCountWhileTheyAreNotRead) {
  SimClock timers;
  SocketOptions options = options_of(GetParam());
  options.budget.max_unsent_bytes = 40 << 20;
  options.rings.bytes = 0;
  Side side(token_, options, GetParam().role, &timers);
  const Fd there = raw_caller(side, token_, side.listen(Endpoint::tcp("127.0.0.1", 0)));
  side.run_until([&] { return side.peers.size() == 1; });
  const Fd here = raw_caller(side, token_, side.listen(Endpoint::unix_at(unique_name())));
  std::vector<std::byte> asked;
  add_request(asked, 1);
  side.answer_bytes = 32 << 20;  // the kernels keep a few MiB of it
  send_all(side, there, asked);
  side.run_until([&] { return side.requests == 1; });
  turn(side);
  ASSERT_TRUE(side.closed.empty());
  side.answer_bytes = 20 << 20;
  send_all(side, here, asked);
  side.run_until([&] { return !side.closed.empty(); });
  ASSERT_FALSE(side.closed.empty());
  EXPECT_NE(side.closed[0].find("AnswersNotRead"), std::string::npos) << side.closed[0];
  read_bytes(side, here, FrameHeader::kBytes + side.answer_bytes);
}

TEST_P(SocketTest, AConnectionToADeadHostBreaks) {
  SocketOptions options = options_of(GetParam());
  options.unanswered = 200ms;
  Side side(token_, options, GetParam().role);
  const Fd there = raw_caller(side, token_, side.listen(Endpoint::tcp("127.0.0.1", 0)));
  side.run_until([&] { return side.peers.size() == 1; });
  const int most = 255;
  ASSERT_EQ(setsockopt(there.get(), IPPROTO_IP, IP_MINTTL, &most, sizeof most), 0);  // drops all packets, as their time to live is smaller
  ASSERT_TRUE(side.peers[0]->notify(Side::kEcho, {}));
  side.run_until([&] { return !side.closed.empty(); });
  ASSERT_FALSE(side.closed.empty());
  EXPECT_NE(side.closed[0].find("Connection timed out"), std::string::npos) << side.closed[0];
}

// Two connections of one process, whose share is one large message. `caller_` sends requests, one of them large, and reads nothing at
// first.
class PauseTest : public SocketTest {
 protected:
  static constexpr std::uint32_t kLarge = 900'000, kAsked = 100, kAnswerBytes = 100'000;
  PauseTest() {
    server_.answer_bytes = kAnswerBytes;
    for (std::uint32_t i = 1; i <= kAsked; ++i) add_request(asked_, i);
    begun_ = asked_.size() + 10'000;
    add_request(asked_, kAsked + 1, kLarge);
    add_request(asked_, kAsked + 2);
  }
  static SocketOptions options() {
    SocketOptions out = options_of(GetParam());
    out.budget.max_unsent_bytes = 8 << 20;
    out.budget.max_arriving_bytes = 4 << 20;
    out.rings.bytes = 0;
    return out;
  }
  static std::vector<std::byte> large(std::uint64_t number) {
    std::vector<std::byte> out;
    add_request(out, number, kLarge);
    return out;
  }
  void await_other(std::uint64_t number) {
    server_.run_until([&] { return std::ranges::count(server_.numbers, number) > 0; });
  }
  bool is_paused() const { return server_.requests > 0 && callers().size() < kAsked; }
  std::vector<std::uint64_t> callers() const {
    std::vector<std::uint64_t> out;
    std::ranges::copy_if(server_.numbers, std::back_inserter(out), [](std::uint64_t n) { return n < kFirstOfOther; });
    return out;
  }
  void send_begin() {
    send_all(server_, caller_, std::span(asked_).first(begun_));
    server_.run_until([&] { return server_.requests > 0; });
    turn(server_);
    ASSERT_TRUE(is_paused()) << callers().size();
  }
  // The caller sends the rest of its requests, and reads all answers.
  void finish() {
    std::span<const std::byte> rest = std::span(asked_).subspan(begun_);
    std::vector<char> room(1 << 20);
    std::size_t left = std::size_t{kAsked + 2} * (FrameHeader::kBytes + kAnswerBytes);
    server_.run_until([&] {
      const ssize_t out = rest.empty() ? 0 : ::send(caller_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (out > 0) rest = rest.subspan(static_cast<std::size_t>(out));
      const ssize_t in = recv(caller_.get(), room.data(), std::min(room.size(), left), MSG_DONTWAIT);
      if (in > 0) left -= static_cast<std::size_t>(in);
      return left == 0;
    });
    std::vector<std::uint64_t> all(kAsked + 2);
    std::iota(all.begin(), all.end(), 1);
    EXPECT_EQ(callers(), all);
    EXPECT_TRUE(server_.closed.empty());
  }

  static constexpr std::uint64_t kFirstOfOther = 1000;
  SimClock timers_;  // stands still
  Side server_{token_, options(), GetParam().role, &timers_};
  const Endpoint to_ = server_.listen(Endpoint::unix_at(unique_name()));
  const Fd caller_ = raw_caller(server_, token_, to_), other_ = raw_caller(server_, token_, to_);
  std::vector<std::byte> asked_;
  std::size_t begun_ = 0;  // bytes of asked_ that send_begin() sends: up to the middle of the large message
};

TEST_P(PauseTest, AMessageThatHasBegunArrivesWholeAndKeepsItsMemoryUntilItIsDelivered) {
  send_begin();
  const std::size_t end = asked_.size() - FrameHeader::kBytes;
  send_all(server_, caller_, std::span(asked_).subspan(begun_, end - begun_));
  begun_ = end;
  const auto next = large(kFirstOfOther);
  std::span<const std::byte> rest(next);
  for (int i = 0; i < 100; ++i) {
    const ssize_t n = ::send(other_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) rest = rest.subspan(static_cast<std::size_t>(n));
    turn(server_, 1);
  }
  EXPECT_FALSE(rest.empty());  // it waits for that memory
  EXPECT_TRUE(is_paused());
  finish();
  send_all(server_, other_, rest);
  await_other(kFirstOfOther);
}

TEST_P(PauseTest, AMessageThatWaitsForMemoryTakesNoneAndKeepsItsPlace) {
  const auto first = large(kFirstOfOther);
  send_all(server_, other_, std::span(first).first(kLarge / 2));
  turn(server_);
  send_begin();
  send_all(server_, other_, std::span(first).subspan(kLarge / 2));
  await_other(kFirstOfOther);
  send_all(server_, other_, large(kFirstOfOther + 1));
  await_other(kFirstOfOther + 1);
  EXPECT_TRUE(is_paused());
  finish();
}

TEST_P(PauseTest, RequestsThatWereKeptAreDeliveredBeforeTheEndOfTheirConnection) {
  send_begin();
  server_.answer_bytes = 1;
  std::vector<std::byte> rest(asked_.begin() + static_cast<std::ptrdiff_t>(begun_), asked_.end());
  std::fill_n(rest.end() - FrameHeader::kBytes, FrameHeader::kBytes, std::byte{0xff});  // instead of the last request: nothing valid
  send_all(server_, caller_, rest);
  shutdown(caller_.get(), SHUT_RDWR);
  server_.run_until([&] { return !server_.closed.empty(); });
  std::vector<std::uint64_t> all(kAsked + 1);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(callers(), all);
}

INSTANTIATE_TEST_SUITE_P(Over, PauseTest, testing::Values(Kind{"sockets", Role::kClient, {}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shoal::runtime
