#include "runtime/net/socket/socket_network.h"

#include <fcntl.h>
#include <sys/mman.h>
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

TEST_P(SocketTest, EchoesSmallAndLargeOverUnixAndTcp) {
  for (const auto& at : {Endpoint::unix_at(unique_name()), Endpoint::tcp("127.0.0.1", 0)}) {
    const Endpoint to = side_.listen(at);
    Peer* caller = side_.connect(to).value();
    EXPECT_EQ(caller->identity().local, at.is_unix());
    std::vector<std::size_t> sizes = {0, 1, 100, 40'000, 70'000, 5'000'000};
    std::vector<std::size_t> back;
    for (const auto n : sizes) {
      Bytes payload(n);
      if (n) std::memset(payload.data(), static_cast<int>(n % 251), n);
      caller->call(Side::kEcho, {{}, std::move(payload), {}}, 10s, [&, n](Result<Message> r) {
        ASSERT_TRUE(r) << r.error().to_string();
        ASSERT_EQ(r->payload.size(), n);
        for (std::size_t i = 0; i < n; i += 997) ASSERT_EQ(r->payload.data()[i], static_cast<std::byte>(n % 251));
        back.push_back(n);
      });
    }
    side_.run_until([&] { return back.size() == sizes.size(); });
    EXPECT_EQ(back, sizes);  // in the order of the calls
  }
}

TEST_P(SocketTest, ManySmallFramesSentLaterArriveInOrder) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  std::vector<int> seen;
  for (int i = 0; i < 20'000; ++i) {
    caller->call(
        Side::kEcho, {{}, Bytes::copy_of(&i, sizeof i), {}}, Peer::kNoTimeout,
        [&](Result<Message> r) {
          int v;
          std::memcpy(&v, r->payload.data(), sizeof v);
          seen.push_back(v);
        },
        Flush::kLater);
  }
  side_.run_until([&] { return seen.size() == 20'000; });
  for (int i = 0; i < 20'000; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST_P(SocketTest, ALargeBodyNeedsNoPayload) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  for (const std::size_t body : {0, 20'000, 300'000}) {
    for (const std::size_t payload : {0, 10, 90'000}) {
      std::optional<std::pair<std::size_t, std::size_t>> back;
      caller->call(Side::kEcho, {Bytes(body), Bytes(payload), {}}, 10s, [&](Result<Message> r) {
        ASSERT_TRUE(r) << r.error().to_string();
        back = {r->body.size(), r->payload.size()};
      });
      side_.run_until([&] { return back.has_value(); });
      EXPECT_EQ(back, (std::pair{body, payload}));
    }
  }
}

TEST_P(SocketTest, EveryFrameIsCounted) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  EXPECT_EQ(side_.network.traffic().sent, 0u);  // the hello is not counted as frames
  int answers = 0;
  caller->call(Side::kEcho, {}, 10s, [&](Result<Message>) { ++answers; });
  caller->notify(Side::kEcho, {});
  side_.run_until([&] { return answers == 1 && side_.notices == 1; });
  EXPECT_EQ(side_.network.traffic().sent, 3u);  // from both ends: the call, its answer, the notice
  EXPECT_EQ(side_.network.traffic().received, 3u);
}

TEST_P(SocketTest, ABulkSenderIsNotifiedWhenTheQueueIsEmpty) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  constexpr std::size_t kMany = 200, kBytes = 90'000;
  for (std::size_t i = 0; i < kMany; ++i) caller->notify(Side::kEcho, {{}, Bytes(kBytes), {}});
  EXPECT_GT(caller->queued_bytes(), 0u);  // more than a socket's buffer holds
  EXPECT_EQ(side_.drained, 0);
  side_.run_until([&] { return side_.drained > 0; });
  side_.run_until([&] { return side_.notices == kMany; });
}

TEST_P(SocketTest, ArrivedFramesAreReadAtOnceAndLaterOnesAreNot) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  const auto notify = [&](int i) {  // mixed, because descriptors end a read and other frames may use a ring
    Message m;
    if (i % 3 != 0) m.fds.emplace_back(dup(0));
    ASSERT_TRUE(caller->notify(Side::kEcho, std::move(m)));
  };
  for (int answers = 0, round = 1; round <= 2; ++round) {  // before and after the rings exist
    Peer* const accepted = side_.peers.front().get();
    side_.notices = 0;
    for (int i = 0; i < 30; ++i) notify(i);
    accepted->read_arrived();
    EXPECT_EQ(side_.notices, 30);
    for (int i = 0; i < 40; ++i) caller->call(Side::kEcho, {}, Peer::kNoTimeout, [&](Result<Message>) { ++answers; });
    side_.run_until([&] { return answers == 40 * round; });
  }
  // The child of a dead peer may hold the connection open and keep writing.
  side_.notices = 0;
  side_.react = [&] {
    if (side_.notices < 1000) notify(1);
  };
  for (int i = 0; i < 30; ++i) notify(1);
  side_.peers.front()->read_arrived();
  EXPECT_GE(side_.notices, 30);
  EXPECT_LT(side_.notices, 1000);
  side_.react = nullptr;
  side_.notices = 0;
  for (int i = 0; i < 30; ++i) notify(1);
  side_.react = [&] {
    side_.react = nullptr;
    side_.peers.erase(side_.peers.begin());
  };
  side_.peers.front()->read_arrived();
  EXPECT_EQ(side_.notices, 1);
}

TEST_P(SocketTest, FramesSentBeforeTheCloseArriveAlsoAtAPeerThatAnswers) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  caller->call(Side::kEcho, {}, Peer::kNoTimeout, [](Result<Message>) {});
  for (int i = 0; i < 30; ++i) {
    Message m;
    m.fds.emplace_back(dup(0));
    ASSERT_TRUE(caller->notify(Side::kEcho, std::move(m)));
  }
  side_.peers.pop_back();  // destroyed before the answer
  side_.run_until([&] { return !side_.closed.empty(); });
  EXPECT_EQ(side_.requests, 1);
  EXPECT_EQ(side_.notices, 30);
}

TEST_P(SocketTest, DescriptorsTravelWithTheirFrame) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  int back = 0;
  for (int i = 0; i < 40; ++i) {
    Fd fd(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(write(fd.get(), &i, sizeof i), static_cast<ssize_t>(sizeof i));
    Message m;
    m.payload = Bytes(i % 3 ? 10 : 90'000);
    std::memset(m.payload.data(), 0, m.payload.size());
    if (i % 4) m.fds.push_back(std::move(fd));
    caller->call(
        Side::kEcho, std::move(m), 10s,
        [&, i](Result<Message> r) {
          ASSERT_TRUE(r) << r.error().to_string();
          ASSERT_EQ(r->fds.size(), i % 4 ? 1u : 0u);
          if (i % 4) {
            int v = -1;
            ASSERT_EQ(pread(r->fds[0].get(), &v, sizeof v, 0), static_cast<ssize_t>(sizeof v));
            EXPECT_EQ(v, i);
            EXPECT_TRUE(fcntl(r->fds[0].get(), F_GETFD) & FD_CLOEXEC);
          }
          ++back;
        },
        i % 2 ? Flush::kLater : Flush::kNow);
  }
  side_.run_until([&] { return back == 40; });
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

// Between hosts a large value travels in its frame, which is not among the bytes that count as unsent.
TEST_P(SocketTest, APeerThatReadsOneLargeAnswerSlowlyIsNotRefused) {
  SimClock timers;
  SocketOptions options = options_of(GetParam());
  options.budget.max_unsent_bytes = 8 << 20;
  Side side(token_, options, GetParam().role, &timers);
  const Fd caller = raw_caller(side, token_, side.listen(Endpoint::tcp("127.0.0.1", 0)));
  side.answer_bytes = 32 << 20;
  std::vector<std::byte> asked;
  add_request(asked, 1);
  send_all(side, caller, asked);
  side.run_until([&] { return timers.num_timers() > 0; });  // the pause has begun
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

TEST_P(PauseTest, AMessageThatHasBegunArrivesWholeAndGivesItsMemoryBack) {
  send_begin();
  const std::size_t end = asked_.size() - FrameHeader::kBytes;
  send_all(server_, caller_, std::span(asked_).subspan(begun_, end - begun_));
  begun_ = end;
  send_all(server_, other_, large(kFirstOfOther));
  await_other(kFirstOfOther);
  EXPECT_TRUE(is_paused());
  finish();
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
  server_.run_until([&] { return !server_.closed.empty(); });
  std::vector<std::uint64_t> all(kAsked + 1);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(callers(), all);
}

INSTANTIATE_TEST_SUITE_P(Over, PauseTest, testing::Values(Kind{"sockets", Role::kClient, {}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SocketTest, AMessageWithoutFreeDescriptorsFailsAlone) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  std::vector<std::string> seen;
  const auto note = [&](Result<Message> r) {
    seen.push_back(r ? "ok " + std::to_string(r->fds.size()) : code_name(r.error().code()));
    if (r) kept_.push_back(std::move(*r));
  };
  const auto send = [&](std::size_t num_fds, std::size_t bytes) {
    Message m;
    m.payload = Bytes(bytes);
    std::memset(m.payload.data(), 0, bytes);
    for (std::size_t i = 0; i < num_fds; ++i)
      m.fds.emplace_back(fcntl(0, F_DUPFD_CLOEXEC, 500));  // high numbers, so that closing them frees none below the limit
    caller->call(Side::kEcho, std::move(m), 10s, note, Flush::kLater);
  };
  send(3, 100);
  send(0, 10);
  send(3, 90'000);
  {
    const NoDescriptorsLeft scarce;
    side_.run_until([&] { return seen.size() == 3; });
  }
  send(3, 100);
  side_.run_until([&] { return seen.size() == 4; });
  EXPECT_EQ(seen, (std::vector<std::string>{"ResourceExhausted", "ok 0", "ResourceExhausted", "ok 3"}));
  EXPECT_TRUE(side_.closed.empty());
}

TEST_P(SocketTest, ErrorsTimeoutsAndDroppedRequestsAllEndTheCall) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  std::vector<std::string> errors;
  const auto note = [&](Result<Message> r) { errors.push_back(r ? "ok" : code_name(r.error().code())); };
  caller->call(Side::kRefuse, {}, 5s, note);
  side_.run_until([&] { return errors.size() == 1; });
  caller->call(Side::kHold, {}, 20ms, note);
  side_.run_until([&] { return errors.size() == 2; });
  caller->call(Side::kHold, {}, Peer::kNoTimeout, note);
  side_.run_until([&] { return side_.held.size() == 2; });
  side_.held.clear();  // dropped without an answer
  side_.run_until([&] { return errors.size() == 3; });
  EXPECT_EQ(errors, (std::vector<std::string>{"NotFound", "DeadlineExceeded", "Internal"}));
}

TEST_P(SocketTest, APeerThatDisconnectsFailsPendingCalls) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  std::string error;
  caller->call(Side::kHold, {}, Peer::kNoTimeout, [&](Result<Message> r) { error = r.error().reason(); });
  side_.run_until([&] { return side_.held.size() == 1; });
  side_.peers.erase(side_.peers.begin());  // the accepting end
  side_.run_until([&] { return !error.empty(); });
  EXPECT_EQ(error, "Disconnected");
  EXPECT_EQ(side_.closed.size(), 1u);
  caller->call(Side::kEcho, {}, 5s, [&](Result<Message> r) { error = r ? "ok" : "closed"; });
  EXPECT_EQ(error, "closed");
}

TEST_P(SocketTest, AnOversizedMessageCostsItsOwnCallAndNoOther) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  Peer* caller = side_.connect(to).value();
  constexpr FrameLimits kLimits;
  std::vector<std::string> seen;
  const auto note = [&](Result<Message> r) { seen.push_back(r ? "ok" : r.error().reason()); };
  caller->call(Side::kEcho, {}, 10s, note);
  caller->call(Side::kEcho, {Bytes(kLimits.max_body_bytes + 8), {}, {}}, 10s, note);
  caller->call(Side::kEcho, {{}, Bytes(kLimits.max_payload_bytes + 1ull), {}}, 10s, note);
  std::vector<Fd> many(kLimits.max_fds + 1u);
  caller->call(Side::kEcho, {{}, {}, std::move(many)}, 10s, note);
  EXPECT_EQ(caller->notify(Side::kEcho, {Bytes(kLimits.max_body_bytes + 8), {}, {}}).error().reason(), "FrameTooLarge");
  EXPECT_EQ(seen, (std::vector<std::string>{"FrameTooLarge", "FrameTooLarge", "FrameTooLarge"}));
  caller->call(Side::kHold, {}, 10s, note);
  side_.run_until([&] { return side_.held.size() == 1; });
  side_.held[0].reply({Bytes(kLimits.max_body_bytes + 8), {}, {}});
  caller->call(Side::kEcho, {}, 10s, note);
  side_.run_until([&] { return seen.size() == 6; });
  EXPECT_EQ(seen, (std::vector<std::string>{"FrameTooLarge", "FrameTooLarge", "FrameTooLarge", "ok", "FrameTooLarge", "ok"}));
  EXPECT_TRUE(side_.closed.empty());
}

TEST_P(SocketTest, ThePeerThatSendsAnOversizedFrameIsCutOff) {
  const Endpoint to = side_.listen(Endpoint::unix_at(unique_name()));
  SocketOptions generous;
  generous.limits.max_payload_bytes = 1u << 30;
  Side stranger(token_, generous);
  const auto run_both = [&](const std::function<bool()>& done) {
    const auto end = side_.clock->now() + 10s;
    while (!done() && side_.clock->now() < end) {
      side_.loop.run_one(1ms);
      stranger.loop.run_one(1ms);
    }
    EXPECT_TRUE(done());
  };
  std::unique_ptr<Connection> connection;
  stranger.network.connect(to, Role::kClient, 5s, [&](Result<std::unique_ptr<Connection>> r) { connection = std::move(*r); });
  run_both([&] { return connection != nullptr; });
  stranger.peers.push_back(std::make_unique<Peer>(std::move(connection), *stranger.clock, stranger));
  bool failed = false;
  stranger.peers[0]->call(Side::kEcho, {{}, Bytes((64u << 20) + 1), {}}, 5s, [&](Result<Message> r) { failed = !r; });
  run_both([&] { return failed && side_.closed.size() == 1; });
  EXPECT_NE(side_.closed[0].find("exceeds the limit"), std::string::npos) << side_.closed[0];
}

INSTANTIATE_TEST_SUITE_P(Over, SocketTest, kKinds, [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shoal::runtime
