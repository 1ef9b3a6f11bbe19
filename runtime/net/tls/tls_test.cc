// TLS between two networks of this process: transfer, refusals, and secrecy.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ctime>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/loop/busy_poller.h"
#include "runtime/loop/loop.h"
#include "runtime/net/peer.h"
#include "runtime/net/socket/socket_connection.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/net/tls/certificates.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

constexpr char kHost[] = "127.0.0.1";
constexpr std::int64_t kDay = 24 * 3600;
constexpr std::uint16_t kEcho = 1;

// A cluster's authority and its certificates, made once because keys are slow under sanitizers.
struct Certificates {
  KeyedCertificate authority = make_authority("test", valid_from(std::time(nullptr), kDay)).value();
  KeyedCertificate node = make_certificate(authority, kHost, valid_from(std::time(nullptr), kDay)).value();
  Fingerprint fingerprint = Fingerprint::from_certificate(authority.certificate).value();

  static const Certificates& get() {
    static const Certificates* const made = new Certificates;
    return *made;
  }
  std::shared_ptr<const Tls> tls() const { return Tls::make(fingerprint, node).value(); }
};

class Side : public PeerHandler {
 public:
  Side(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options)
      : loop(loop), clock(clock), network(loop, clock, random, token, std::move(options)) {}
  ~Side() {
    peers.clear();
    listener.reset();
    bool drained = false;
    network.stop([&] { drained = true; });
    while (!drained) loop.run_one(20ms);
  }
  Endpoint listen(const Endpoint& at = Endpoint::tcp(kHost, 0)) {
    listener = network.listen(at, [this](std::unique_ptr<Connection> c) { adopt(std::move(c)); }).value();
    return listener->endpoint();
  }
  Peer* adopt(std::unique_ptr<Connection> connection) {
    peers.push_back(std::make_unique<Peer>(std::move(connection), clock, *this));
    return peers.back().get();
  }
  Result<Peer*> connect(const Endpoint& to) {
    std::optional<Result<std::unique_ptr<Connection>>> out;
    network.connect(to, Role::kWorker, 20s, [&](Result<std::unique_ptr<Connection>> r) { out.emplace(std::move(r)); });
    while (!out) loop.run_one(100ms);
    if (!*out) return fail(out->error());
    return adopt(std::move(**out));
  }
  void on_request(Peer&, Request request, Responder responder) override { responder.reply(std::move(request.message)); }
  void on_notice(Peer&, Request) override {}
  void on_closed(Peer&, const Error& why) override { closed.push_back(why.reason()); }

  Loop& loop;
  Clock& clock;
  SocketNetwork network;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<std::string> closed;
};

// A proxy between a caller and `to`: forwards pieces of `piece` bytes, records them, and can alter them or close.
class Between {
 public:
  explicit Between(const Endpoint& to, std::size_t piece = 64 << 10) : to_(to.port), piece_(piece) {
    listening_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = address(0);
    EXPECT_EQ(bind(listening_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    socklen_t length = sizeof at;
    getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&at), &length);
    port_ = ntohs(at.sin_port);
    EXPECT_EQ(pipe2(stop_, O_CLOEXEC), 0);
    thread_ = std::thread([this] { carry(); });
  }
  ~Between() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    (void)!write(stop_[1], "", 1);
    thread_.join();
    ::close(stop_[0]);
    ::close(stop_[1]);
  }
  Endpoint endpoint() const { return Endpoint::tcp(kHost, port_); }

  std::string seen;                // valid after the stop
  std::size_t spoil_at = 0;        // offset of the byte to the listener that is altered; 0: none
  std::size_t close_after = ~0ul;  // bytes to the listener after which both ends are closed

 private:
  static sockaddr_in address(std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return out;
  }
  void carry() {
    pollfd first[2] = {{listening_.get(), POLLIN, 0}, {stop_[0], POLLIN, 0}};
    poll(first, 2, -1);
    if (first[1].revents != 0) return;
    const Fd caller(accept(listening_.get(), nullptr, nullptr));
    const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in at = address(to_);
    if (::connect(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) return;
    std::vector<char> bytes(piece_);
    std::size_t sent = 0;
    for (;;) {
      pollfd ends[3] = {{caller.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}, {stop_[0], POLLIN, 0}};
      poll(ends, 3, -1);
      if (ends[2].revents != 0) return;
      for (int i = 0; i < 2; ++i) {
        if ((ends[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        const ssize_t n = recv(ends[i].fd, bytes.data(), bytes.size(), 0);
        if (n <= 0) return;
        const auto count = static_cast<std::size_t>(n);
        if (i == 0 && spoil_at > sent && spoil_at <= sent + count) bytes[spoil_at - sent - 1] ^= 1;
        seen.append(bytes.data(), count);
        if (i == 0) sent += count;
        if (send(ends[1 - i].fd, bytes.data(), count, MSG_NOSIGNAL) < n) return;
        if (sent >= close_after) return;
      }
    }
  }

  const std::uint16_t to_;
  const std::size_t piece_;
  std::uint16_t port_ = 0;
  Fd listening_;
  int stop_[2] = {-1, -1};
  std::thread thread_;
};

class TlsTest : public testing::Test {
 protected:
  SocketOptions with(std::shared_ptr<const Tls> tls) {
    SocketOptions out = options_;
    out.tls = std::move(tls);
    return out;
  }
  std::unique_ptr<Side> side(SocketOptions options) { return std::make_unique<Side>(loop_, *clock_, *random_, token_, std::move(options)); }
  std::unique_ptr<Side> listener() { return side(with(certificates_.tls())); }
  std::unique_ptr<Side> caller() { return side(with(Tls::make(certificates_.fingerprint).value())); }

  void run_until(const std::function<bool()>& done) {
    while (!done()) loop_.run_one(100ms);
  }
  // Sends a request and returns its answer.
  Result<Message> echo(Peer& peer, Message message) {
    std::optional<Result<Message>> out;
    peer.call(kEcho, std::move(message), Peer::kNoTimeout, [&](Result<Message> r) { out.emplace(std::move(r)); });
    run_until([&] { return out.has_value(); });
    return std::move(*out);
  }
  std::string refusal(Side& from, const Endpoint& to) {
    const auto connected = from.connect(to);
    return connected ? "none" : connected.error().reason();
  }
  // Returns the outcome for a caller limited to TLS 1.2.
  static std::string outcome_of_tls12(const Endpoint& to) {
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(to.port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, fd.get());
    const bool connected = SSL_connect(ssl) == 1;
    SSL_free(ssl);
    SSL_CTX_free(context);
    return connected ? "connected" : "refused";
  }

  const Certificates& certificates_ = Certificates::get();
  Loop loop_;
  std::unique_ptr<Clock> clock_ = make_real_clock(loop_);
  std::unique_ptr<Random> random_ = make_real_random();
  const Token token_ = Token::random(*random_);
  SocketOptions options_;
};

TEST_F(TlsTest, FramesArriveAndAreEncrypted) {
  const auto there = listener();
  Between between(there->listen());
  const auto here = caller();
  Peer& peer = *here->connect(between.endpoint()).value();
  EXPECT_FALSE(peer.identity().local);
  const std::string marker = "a marker that nobody else shall read....";
  std::string text;
  for (int i = 0; i < 1000; ++i) text += marker;
  const auto back = echo(peer, {Bytes::copy_of(marker), Bytes::copy_of(text), {}});
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(back->payload.view(), text);
  EXPECT_EQ(back->body.view(), marker);
  between.stop();
  EXPECT_GT(between.seen.size(), 2 * text.size());
  EXPECT_EQ(between.seen.find(marker), std::string::npos);
  EXPECT_EQ(between.seen.find("SHL1"), std::string::npos);  // no hello either
  EXPECT_EQ(between.seen.find(reinterpret_cast<const char*>(token_.bytes().data()), 0, Token::kBytes), std::string::npos);
}

TEST_F(TlsTest, AnAnswerIsFoundByPollingAndLaterFramesByEpoll) {
  Loop far_loop;
  const auto far_clock = make_real_clock(far_loop);
  Side there(far_loop, *far_clock, *random_, token_, with(certificates_.tls()));
  const auto here = caller();
  std::optional<Result<std::unique_ptr<Connection>>> connected;
  here->network.connect(there.listen(), Role::kWorker, 20s,
                        [&](Result<std::unique_ptr<Connection>> r) { connected.emplace(std::move(r)); });
  while (!connected) {
    loop_.run_one(1ms);
    far_loop.run_one(1ms);
  }
  Peer& peer = *here->adopt(std::move(**connected));
  bool answered = false;
  const auto note = [&](const Result<Message>& r) { answered = r.has_value(); };
  peer.call(kEcho, {}, Peer::kNoTimeout, note);
  while (!answered) {
    far_loop.run_one(1ms);
    loop_.busy_poller().busy_poll([] { return false; });  // without epoll
  }
  while (!loop_.busy_poller().empty()) loop_.run_one(1ms);
  answered = false;
  there.peers.front()->call(kEcho, {}, Peer::kNoTimeout, note);
  while (!answered) {
    loop_.run_one(1ms);  // without polling sockets
    far_loop.run_one(1ms);
  }
}

TEST_F(TlsTest, RecordsMayComeInAnyPieces) {
  const auto there = listener();
  Between between(there->listen(), 7);
  const auto here = caller();
  Peer& peer = *here->connect(between.endpoint()).value();
  for (const std::size_t n : {0u, 1u, 100u, 20'000u}) {
    const std::string text(n, 'x');
    EXPECT_EQ(echo(peer, {{}, Bytes::copy_of(text), {}}).value().payload.view(), text);
  }
}

TEST_F(TlsTest, PayloadsLargerThanAFrameComeInParts) {
  options_.limits.max_payload_bytes = 1 << 16;
  options_.max_message_bytes = 5 << 20;
  const auto there = listener();
  const auto here = caller();
  Peer& peer = *here->connect(there->listen()).value();
  for (const std::size_t n : {1u << 16, (1u << 16) + 1, 2u << 16, (2u << 16) + 1, 5u << 20}) {
    Bytes bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes.data()[i] = static_cast<std::byte>(i * 31 >> 3);
    const Bytes expected = bytes.clone();
    const auto back = echo(peer, {Bytes::copy_of("the body"), std::move(bytes), {}});
    ASSERT_TRUE(back) << back.error().to_string();
    EXPECT_TRUE(back->payload.view() == expected.view()) << n;
    EXPECT_EQ(back->body.view(), "the body");
  }
  EXPECT_EQ(echo(peer, {{}, Bytes((5u << 20) + 1), {}}).error().reason(), "FrameTooLarge");
  EXPECT_TRUE(echo(peer, {}));
}

TEST_F(TlsTest, ManyFramesArriveInOrderBothWays) {
  const auto there = listener();
  const auto here = caller();
  Peer& peer = *here->connect(there->listen()).value();
  int next = 0;
  for (int i = 0; i < 2000; ++i) {
    const Flush flush = i % 3 == 0 ? Flush::kNow : Flush::kLater;
    const std::size_t n = i % 100 == 0 ? 200'000 : 10;
    peer.call(kEcho, {{}, Bytes(n), {}}, Peer::kNoTimeout, [&next, i](Result<Message> r) { next = r && next == i ? i + 1 : -1; }, flush);
  }
  run_until([&] { return next == 2000 || next < 0; });
  EXPECT_EQ(next, 2000);
}

TEST_F(TlsTest, DescriptorsDoNotTravelAndCostOnlyTheirOwnCall) {
  const auto there = listener();
  const auto here = caller();
  Peer& peer = *here->connect(there->listen()).value();
  Message with_descriptor;
  with_descriptor.fds.push_back(Fd(dup(0)));
  EXPECT_EQ(echo(peer, std::move(with_descriptor)).error().reason(), "FrameTooLarge");
  EXPECT_TRUE(echo(peer, {}));
}

TEST_F(TlsTest, AConnectionThatIsCutEndsTheSame) {
  const auto there = listener();
  Between between(there->listen());
  between.close_after = 100'000;
  const auto here = caller();
  Peer& peer = *here->connect(between.endpoint()).value();
  EXPECT_EQ(echo(peer, {{}, Bytes(1 << 20), {}}).error().reason(), "Disconnected");
  run_until([&] { return there->closed.size() == 1 && here->closed.size() == 1; });
  EXPECT_EQ(there->closed[0], "Disconnected");
}

TEST_F(TlsTest, AnAlteredByteEndsTheConnection) {
  const auto there = listener();
  Between between(there->listen());
  between.spoil_at = 50'000;
  const auto here = caller();
  Peer& peer = *here->connect(between.endpoint()).value();
  EXPECT_FALSE(echo(peer, {{}, Bytes(100'000), {}}));
  run_until([&] { return there->closed.size() == 1; });
  EXPECT_EQ(there->closed[0], "Disconnected");
}

TEST_F(TlsTest, AnotherAuthorityIsRefusedBeforeAnythingIsSent) {
  const KeyedCertificate authority = make_authority("test", valid_from(std::time(nullptr), kDay)).value();
  const Fingerprint other = Fingerprint::from_certificate(authority.certificate).value();
  const auto there = listener();
  Between between(there->listen());
  const auto here = side(with(Tls::make(other).value()));
  EXPECT_EQ(refusal(*here, between.endpoint()), "CertificateRefused");
  EXPECT_TRUE(there->peers.empty());
}

TEST_F(TlsTest, CertificatesThatTheAuthorityDidNotSignOrThatAreOverAreRefused) {
  const std::int64_t now = std::time(nullptr);
  const auto signed_by = [&](const KeyedCertificate& authority, Validity validity) {
    return make_certificate(authority, kHost, validity).value();
  };
  const KeyedCertificate impostor = make_authority("test", valid_from(now, kDay)).value();
  // Signed by another authority of the same name, sent with the true authority's certificate.
  KeyedCertificate forged = signed_by(impostor, valid_from(now, kDay));
  forged.certificate =
      forged.certificate.substr(0, forged.certificate.size() - impostor.certificate.size()) + certificates_.authority.certificate;
  // A self-signed certificate.
  KeyedCertificate own = impostor;
  own.certificate += certificates_.authority.certificate;
  const KeyedCertificate expired = signed_by(certificates_.authority, {now - 2 * kDay, now - kDay});
  const KeyedCertificate early = signed_by(certificates_.authority, {now + kDay, now + 2 * kDay});
  for (const auto& [bad, reason] : {std::pair(expired, "CertificateExpired"), std::pair(early, "CertificateExpired"),
                                    std::pair(forged, "CertificateRefused"), std::pair(own, "CertificateRefused")}) {
    const auto there = side(with(Tls::make(certificates_.fingerprint, bad).value()));
    const Endpoint at = there->listen();
    EXPECT_EQ(refusal(*caller(), at), reason);
    EXPECT_TRUE(there->peers.empty());
  }
}

TEST_F(TlsTest, AnotherTokenIsRefused) {
  const auto there = listener();
  const Endpoint at = there->listen();
  Side stranger(loop_, *clock_, *random_, Token::random(*random_), with(Tls::make(certificates_.fingerprint).value()));
  EXPECT_EQ(refusal(stranger, at), "TokenRefused");
  EXPECT_TRUE(there->peers.empty());
}

// A process with a certificate of the cluster but without its token cannot forward another process's proof.
TEST_F(TlsTest, AProofIsWorthNothingInAnotherSession) {
  const TlsBinding one{1}, other{2};
  HelloListener listener(token_, {}, *random_, one);
  HelloCaller caller(token_, {}, Role::kWorker, *random_, other);
  EXPECT_EQ(listener.judge(caller.answer(listener.challenge()).value()).accepted.error().reason(), "TokenRefused");
  HelloCaller unbound(token_, {}, Role::kWorker, *random_);
  EXPECT_FALSE(listener.judge(unbound.answer(listener.challenge()).value()).accepted);
  HelloCaller bound(token_, {}, Role::kWorker, *random_, one);
  EXPECT_TRUE(listener.judge(bound.answer(listener.challenge()).value()).accepted);
}

TEST_F(TlsTest, ClearTextIsRefusedOnBothSides) {
  options_.hello_timeout = 200ms;
  const auto there = listener();
  const Endpoint at = there->listen();
  const auto plain = side({});
  EXPECT_EQ(refusal(*plain, at), "HungUp");  // no clear-text hello arrives
  EXPECT_EQ(refusal(*caller(), plain->listen()), "NotTls");
  EXPECT_TRUE(there->peers.empty());
}

TEST_F(TlsTest, AddressesThatAreNotLoopbackAreRefusedWithoutTls) {
  const auto plain = side({});
  EXPECT_EQ(refusal(*plain, Endpoint::tcp("192.0.2.1", 7460)), "TlsRequired");
  EXPECT_EQ(refusal(*plain, Endpoint{"name", "192.0.2.1", 7460}), "TlsRequired");
  EXPECT_EQ(plain->network.listen(Endpoint::tcp("0.0.0.0", 0), {}).error().reason(), "TlsRequired");
  const auto only_calls = caller();
  EXPECT_EQ(only_calls->network.listen(Endpoint::tcp("0.0.0.0", 0), {}).error().reason(), "TlsRequired");
}

// Debian maps a host's own name to 127.0.1.1 in /etc/hosts.
TEST_F(TlsTest, ANameThatLeadsBackToTheHostItselfIsRefused) {
  EXPECT_EQ(listener()->network.listen(Endpoint::tcp("0x7f.0.1.1", 0), {}).error().reason(), "Unreachable");
}

TEST_F(TlsTest, OlderTlsIsRefused) {
  const auto there = listener();
  const Endpoint at = there->listen();
  std::string outcome;
  std::atomic<bool> over = false;
  std::thread client([&] {
    outcome = outcome_of_tls12(at);
    over = true;
  });
  run_until([&] { return over.load(); });
  client.join();
  EXPECT_EQ(outcome, "refused");
  EXPECT_TRUE(there->peers.empty());
}

// A frame in the same TLS record as the end of the hello is buffered in OpenSSL; the socket does not become readable for it.
TEST_F(TlsTest, FramesThatArrivedBeforeTheStartAreRead) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  Fd here(ends[0]);
  const Fd there(ends[1]);
  TlsSession listens(certificates_.tls(), here.get(), TlsSession::Side::kListens);
  TlsSession calls(Tls::make(certificates_.fingerprint).value(), there.get(), TlsSession::Side::kCalls);
  using Step = TlsSession::Step;
  for (Step a = Step::kReadable, b = a; a != Step::kComplete || b != Step::kComplete;) {
    if (a != Step::kComplete) a = calls.handshake().value();
    if (b != Step::kComplete) b = listens.handshake().value();
  }
  Frame frame{FrameKind::kNotice, 7, 0, Bytes(8), {}, {}, false};
  std::vector<std::byte> record(64);
  const auto head = FrameHeader::for_frame(frame).encode();
  record.insert(record.end(), head.begin(), head.end());
  record.resize(record.size() + 8);
  ASSERT_EQ(calls.write(record).value().bytes, record.size());
  std::array<std::byte, 64> hello;
  ASSERT_EQ(listens.read(hello).value().bytes, hello.size());

  struct Handler : ConnectionHandler {
    void on_frame(Frame f) override { methods.push_back(f.method); }
    void on_closed(Error why) override { ADD_FAILURE() << why.to_string(); }
    std::vector<std::uint16_t> methods;
  } handler;
  const auto budget = std::make_shared<Budget>(*clock_, Budget::Options());
  const auto connection = make_tls_connection(loop_, std::move(here), std::move(listens), {}, options_,
                                              {*clock_, budget, std::make_shared<Traffic>(), budget->outgoing()});
  connection->start(handler);
  run_until([&] { return !handler.methods.empty(); });
  EXPECT_EQ(handler.methods, std::vector<std::uint16_t>{7});
}

TEST_F(TlsTest, AListenerForBothIsReachedOnItsHostWithoutTls) {
  options_.host = kHost;
  const auto there = listener();
  const Endpoint at = there->listen(Endpoint{"shoal-test-" + token_.hex(), kHost, 0});
  EXPECT_NE(at.port, 0);
  EXPECT_TRUE(caller()->connect(at).value()->identity().local);
  options_.host = "192.0.2.7";
  EXPECT_FALSE(caller()->connect(at).value()->identity().local);
}

TEST(Certificates, AFingerprintIsReadAndWritten) {
  const auto& c = Certificates::get();
  const std::string text = c.fingerprint.to_string();
  EXPECT_EQ(text.size(), 7u + 64);
  EXPECT_EQ(Fingerprint::parse(text).value(), c.fingerprint);
  EXPECT_EQ(Fingerprint::from_certificate(c.node.certificate).value() == c.fingerprint, false);
  for (const std::string& bad : std::vector<std::string>{"", "sha256:", "sha256:00", text.substr(7), text + "0"}) {
    EXPECT_FALSE(Fingerprint::parse(bad)) << bad;
  }
}

TEST(Certificates, AnAuthorityFollowsFromASecret) {
  const auto authority = derive_authority("secret").value();
  const auto fingerprint = Fingerprint::from_certificate(authority.certificate).value();
  EXPECT_EQ(fingerprint, Fingerprint::from_certificate(derive_authority("secret").value().certificate).value());
  EXPECT_NE(fingerprint, Fingerprint::from_certificate(derive_authority("secrets").value().certificate).value());
  EXPECT_TRUE(Tls::make(fingerprint, make_certificate(authority, kHost, valid_from(std::time(nullptr), kDay)).value()));
}

TEST(Certificates, OnlyRequestsWithTheirOwnKeysSignatureAreSigned) {
  const auto& c = Certificates::get();
  const Validity validity = valid_from(std::time(nullptr), kDay);
  const auto asked = make_certificate_request("me").value();
  EXPECT_TRUE(sign_certificate(c.authority, asked.request, "10.0.0.1", validity));
  EXPECT_TRUE(sign_certificate(c.authority, asked.request, "node-1.example", validity));
  EXPECT_EQ(sign_certificate(c.authority, "nothing", "10.0.0.1", validity).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(sign_certificate(c.authority, asked.request, "a,CA:TRUE", validity).error().code(), Code::kInvalidArgument);
  std::string altered = asked.request;
  const auto middle = altered.size() / 2;
  altered[middle] = altered[middle] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(sign_certificate(c.authority, altered, "10.0.0.1", validity));
  EXPECT_FALSE(Tls::make(c.fingerprint, {c.node.certificate, asked.key}));
}

}  // namespace
}  // namespace shoal::runtime
