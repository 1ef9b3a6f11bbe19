// How sockets are connected, accepted and refused.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

#include <gtest/gtest.h>

#include "runtime/net/socket/socket_fixture.h"
#include "runtime/net/tls/certificates.h"
#include "runtime/net/tls/tls.h"
#include "runtime/sim/sim_clock.h"

namespace shoal::runtime {
namespace {

TEST_P(SocketTest, StrangersAreRefusedBeforeAnythingIsParsed) {
  const Endpoint to = side_.listen(Endpoint::tcp("127.0.0.1", 0));
  Side stranger(Token::random(seeded_));
  std::optional<Error> error;
  stranger.network.connect(to, Role::kClient, 5s, [&](Result<std::unique_ptr<Connection>> r) { error = r.error(); });
  const auto end = side_.clock->now() + 5s;
  while (!error && side_.clock->now() < end) {
    side_.loop.run_one(1ms);
    stranger.loop.run_one(1ms);
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), "TokenRefused");
  EXPECT_TRUE(side_.peers.empty());
}

TEST_P(SocketTest, AHelloThatEndsAfterItsListenerIsDropped) {
  const Endpoint at = Endpoint::unix_at(unique_name());
  auto owner = std::make_unique<int>(0);
  auto listener = side_.network.listen(at, [raw = owner.get()](std::unique_ptr<Connection>) { ++*raw; }).value();
  const Fd caller = raw_connect(at);
  const HelloMessage message = challenge_on(caller);
  listener.reset();
  owner.reset();
  HelloCaller hello(token_, {}, Role::kClient, seeded_);
  const auto answer = hello.answer(message).value();
  (void)send(caller.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  ssize_t n = -1;
  side_.run_until([&] {
    char verdict = 0;
    if (n < 0) n = recv(caller.get(), &verdict, 1, MSG_DONTWAIT);
    return n >= 0 || errno == ECONNRESET;
  });
  EXPECT_LE(n, 0);  // closed without a message
}

TEST_P(SocketTest, WithoutDescriptorsNoConnectionIsAcceptedAndNothingSpins) {
  const Endpoint at = side_.listen(Endpoint::unix_at(unique_name()));
  const Fd caller = raw_connect(at);
  {
    const NoDescriptorsLeft scarce;
    int handlers = 0;
    const auto end = side_.clock->now() + 500ms;
    while (side_.clock->now() < end) {
      side_.loop.run_one(10ms);
      ++handlers;
    }
    EXPECT_LT(handlers, 500);  // idle turns and a few attempts
  }
  challenge_on(caller);
}

TEST_P(SocketTest, AConnectWaitsForASlowListener) {
  const Endpoint at = Endpoint::unix_at(unique_name());
  const sockaddr_un name = address_of(at);
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + at.unix_name.size());
  Fd busy(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(bind(busy.get(), reinterpret_cast<const sockaddr*>(&name), length), 0);
  ASSERT_EQ(listen(busy.get(), 0), 0);
  const Fd first = raw_connect(at);  // fills the backlog
  std::optional<Result<std::unique_ptr<Connection>>> out;
  side_.network.connect(at, Role::kClient, 10s, [&](Result<std::unique_ptr<Connection>> r) { out.emplace(std::move(r)); });
  const auto end = side_.clock->now() + 100ms;
  while (side_.clock->now() < end) side_.loop.run_one(10ms);
  ASSERT_FALSE(out) << (*out)->get();
  std::vector<Fd> accepted;
  side_.run_until([&] {
    if (Fd next(accept4(busy.get(), nullptr, nullptr, SOCK_CLOEXEC)); next) accepted.push_back(std::move(next));
    return accepted.size() == 2;
  });
  EXPECT_FALSE(out);  // still waits for the hello
  accepted.clear();
  side_.run_until([&] { return out.has_value(); });
}

TEST_P(SocketTest, ManySimultaneousConnectsAreAllAccepted) {
  SocketOptions options = options_of(GetParam());
  options.hello_timeout = 1h;  // long enough for slow machines
  options.max_hellos = 8;
  Side side(token_, options, GetParam().role);
  constexpr std::size_t kCallers = 50;
  const Endpoint to = side.listen(Endpoint::unix_at(unique_name()));
  std::vector<std::unique_ptr<Connection>> connections;
  std::size_t answered = 0;
  for (std::size_t i = 0; i < kCallers; ++i) {
    side.network.connect(to, GetParam().role, 1h, [&](Result<std::unique_ptr<Connection>> r) {
      ++answered;
      EXPECT_TRUE(r) << r.error().to_string();
      if (r) connections.push_back(*std::move(r));
    });
  }
  side.run_until([&] { return answered == kCallers; });
  EXPECT_EQ(connections.size(), kCallers);
  side.run_until([&] { return side.peers.size() == kCallers; });
}

TEST_P(SocketTest, SilentConnectionsMakeRoomForOthers) {
  SocketOptions options = options_of(GetParam());
  options.hello_timeout = 1h;
  options.max_hellos = 2;
  Side side(token_, options, GetParam().role);
  const Endpoint to = side.listen(Endpoint::unix_at(unique_name()));
  std::vector<Fd> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(raw_connect(to));
  bool connected = false;
  side.network.connect(to, GetParam().role, 1h, [&](Result<std::unique_ptr<Connection>> r) { connected = r.has_value(); });
  side.run_until([&] { return connected; });
}

TEST_P(SocketTest, HundredsOfSilentConnectionsKeepNoCallerWaiting) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 16 * 400) GTEST_SKIP() << "this process may open " << limit.rlim_cur << " descriptors";
  SocketOptions options = options_of(GetParam());
  options.hello_timeout = options.hello_patience = 1h;
  Side side(token_, options, GetParam().role);
  const Endpoint to = side.listen(Endpoint::unix_at(unique_name()));
  std::vector<Fd> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(raw_connect(to));
  ASSERT_TRUE(side.connect(to));
}

TEST_P(SocketTest, ACallerWithTooManyConnectionsIsRefusedWithACode) {
  SocketOptions options = options_of(GetParam());
  options.budget.max_connections = 8;
  Side side(token_, options, GetParam().role);
  const Endpoint to = side.listen(Endpoint::unix_at(unique_name()));
  ASSERT_TRUE(side.connect(to));
  ASSERT_TRUE(side.connect(to));
  const auto third = side.connect(to);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(third.error().reason(), "TooManyConnections");
  side.peers.clear();
  bool closed = false;
  side.loop.post([&] { closed = true; });
  side.run_until([&] { return closed; });
  ASSERT_TRUE(side.connect(to));
}

TEST_P(SocketTest, ACallerOfTheVersionBeforeForWhichThereIsNoRoomGetsNoVerdict) {
  SocketOptions options = options_of(GetParam());
  options.budget.max_connections = 4;
  options.versions = {1, 2};
  Side side(token_, options, GetParam().role);
  const Endpoint to = side.listen(Endpoint::unix_at(unique_name()));
  ASSERT_TRUE(side.connect(to));
  options.versions = {1, 1};
  Side old(token_, options, GetParam().role);
  std::optional<Error> why;
  old.network.connect(to, Role::kClient, 5s, [&](Result<std::unique_ptr<Connection>> r) { why = r.error(); });
  const auto end = side.clock->now() + 5s;
  while (!why && side.clock->now() < end) {
    side.loop.run_one(1ms);
    old.loop.run_one(1ms);
  }
  ASSERT_TRUE(why);
  EXPECT_EQ(why->code(), Code::kUnavailable) << why->to_string();
}

TEST_P(SocketTest, AMissingListenerAndAnAddressInUseAreNamed) {
  const auto refused = side_.connect(Endpoint::unix_at(unique_name()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_NE(refused.error().to_string().find("connecting to unix:@"), std::string::npos);
  const Endpoint taken = side_.listen(Endpoint::tcp("127.0.0.1", 0));
  EXPECT_EQ(side_.network.listen(taken, [](std::unique_ptr<Connection>) {}).error().reason(), "AddressInUse");
}

// As if a link lost the packets of the answer: the kernel accepts the connection, and the loop of its process does not run.
TEST(Tls, AHandshakeWithoutAnAnswerHasAHintAboutLargePackets) {
  SeededRandom seeded(3);
  const Token token = Token::random(seeded);
  Side silent(token);
  const Endpoint to = silent.listen(Endpoint::tcp("127.0.0.1", 0));
  SocketOptions options;
  options.tls = Tls::make(Fingerprint::parse("sha256:" + std::string(64, 'a')).value()).value();
  Side side(token, options);
  std::optional<Error> why;
  side.network.connect(to, Role::kClient, 50ms, [&](Result<std::unique_ptr<Connection>> r) { why = r.error(); });
  side.run_until([&] { return why.has_value(); });
  EXPECT_EQ(why->code(), Code::kDeadlineExceeded);
  EXPECT_NE(why->hint().find("MTU"), std::string::npos) << why->to_string();
}

TEST(Tls, AHandshakeOverALongLinkIsNotClosedToMakeRoomForStrangers) {
  const auto valid = valid_from(std::time(nullptr), 24 * 3600);
  const KeyedCertificate authority = make_authority("test", valid).value();
  const Fingerprint fingerprint = Fingerprint::from_certificate(authority.certificate).value();
  SeededRandom seeded(3);
  SimClock timers;
  SocketOptions options;
  options.tls = Tls::make(fingerprint, make_certificate(authority, "127.0.0.1", valid).value()).value();
  options.max_hellos = 2;
  Side side(Token::random(seeded), options, Role::kClient, &timers);
  const Endpoint to = side.listen(Endpoint::tcp("127.0.0.1", 0));
  const auto readable = [&](const Fd& fd) {
    char byte = 0;
    side.run_until([&] { return recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN; });
    return recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  };
  const Fd slow = raw_connect(to);
  fcntl(slow.get(), F_SETFL, O_NONBLOCK);
  TlsSession session(Tls::make(fingerprint).value(), slow.get(), TlsSession::Side::kCalls);
  ASSERT_EQ(session.handshake().value(), TlsSession::Step::kReadable);
  ASSERT_TRUE(readable(slow));  // the listener has answered: the handshake waits for this caller
  const Fd stranger = raw_connect(to);
  for (int i = 0; i < 100; ++i) side.loop.poll_one();
  timers.advance_to(timers.now() + options.hello_patience + 20ms);
  const Fd next = raw_connect(to);
  EXPECT_FALSE(readable(stranger));  // closed for `next`
  ASSERT_EQ(session.handshake().value(), TlsSession::Step::kComplete);
  HelloMessage challenge;
  ASSERT_TRUE(readable(slow));
  EXPECT_EQ(session.read(std::as_writable_bytes(std::span(challenge))).value().bytes, challenge.size());
}

// The minimal path: two processes, a call over Asio, and a Cap'n Proto error in the answer.
TEST(TwoProcesses, GreetEachOther) {
  SeededRandom seeded(3);
  const Token token = Token::random(seeded);
  const Endpoint at = Endpoint::unix_at(unique_name());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Side side(token);
    side.listen(at);
    const char yes = 1;
    if (write(ready[1], &yes, 1) != 1) _exit(1);
    while (side.requests < 2) side.loop.run_one(100ms);
    while (side.closed.empty()) side.loop.run_one(100ms);
    _exit(0);
  }
  char yes = 0;
  ASSERT_EQ(read(ready[0], &yes, 1), 1);
  {
    Side side(token);
    Peer* peer = side.connect(at).value();
    EXPECT_EQ(peer->identity().pid, child);
    std::string hello, refusal;
    peer->call(Side::kEcho, {{}, Bytes::copy_of("hello"), {}}, 5s, [&](Result<Message> r) { hello = r->payload.view(); });
    peer->call(Side::kRefuse, {}, 5s, [&](Result<Message> r) { refusal = r.error().to_string(); });
    side.run_until([&] { return !refusal.empty(); });
    EXPECT_EQ(hello, "hello");
    EXPECT_EQ(refusal, "error[NotFound]: nothing here\n  hint: look elsewhere");
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace shoal::runtime
