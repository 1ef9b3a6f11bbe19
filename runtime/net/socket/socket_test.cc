#include "runtime/net/socket/socket_network.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/net/socket/socket_fixture.h"

namespace shoal::runtime {
namespace {

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

TEST_P(SocketTest, AMessageBeyondTheLimitOfItsMethodCostsItsOwnCallAlone) {
  SocketOptions options = options_of(GetParam());
  options.limits.max_payload_of = [](FrameKind, std::uint16_t method) -> std::uint64_t { return method == Side::kRefuse ? 1000 : 1 << 20; };
  Side side(token_, options, GetParam().role);
  Peer* caller = side.connect(side.listen(Endpoint::unix_at(unique_name()))).value();
  std::vector<std::string> seen;
  const auto note = [&](Result<Message> r) { seen.push_back(r ? "ok" : r.error().reason()); };
  caller->call(Side::kRefuse, {{}, Bytes(100'000), {}}, 10s, note);
  caller->call(Side::kEcho, {{}, Bytes(100'000), {}}, 10s, note);
  side.run_until([&] { return seen.size() == 2; });
  EXPECT_EQ(seen, (std::vector<std::string>{"FrameTooLarge", "ok"}));
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
