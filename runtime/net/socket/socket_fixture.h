// Two ends of a connection on one loop, over each kind of connection within a host.
#pragma once

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/core/id.h"
#include "runtime/loop/loop.h"
#include "runtime/net/peer.h"
#include "runtime/net/socket/socket_network.h"

namespace shoal::runtime {

using namespace std::chrono_literals;

inline std::string unique_name() { return "shoal-test-" + hex(make_real_random()->next()); }

inline sockaddr_un address_of(const Endpoint& at) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path + 1, at.unix_name.data(), at.unix_name.size());
  return out;
}

// Connects a raw socket that sends nothing by itself.
inline Fd raw_connect(const Endpoint& at) {
  if (!at.is_unix()) {
    Fd out(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 64 << 10;  // so that the kernel keeps little that was not read
    setsockopt(out.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(at.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(out.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    return out;
  }
  Fd out(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un to = address_of(at);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + at.unix_name.size());
  EXPECT_EQ(connect(out.get(), reinterpret_cast<const sockaddr*>(&to), length), 0);
  return out;
}

// Prevents this process from opening or receiving descriptors for its lifetime.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Fd next(dup(0));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next.get());
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// One side: a loop, a network, and a handler that echoes requests.
class Side : public PeerHandler {
 public:
  // `timers`: the clock of the network, if the test moves it.
  explicit Side(const Token& token, SocketOptions options = {}, Role role = Role::kClient, Clock* timers = nullptr)
      : network(loop, timers != nullptr ? *timers : *clock, *random, token, options), role(role) {}
  ~Side() {
    peers.clear();
    bool drained = false;
    network.stop([&] { drained = true; });
    run_until([&] { return drained; });
  }

  void run_until(const std::function<bool()>& done) {
    const auto end = clock->now() + 10s;
    while (!done() && clock->now() < end) loop.run_one(20ms);
    EXPECT_TRUE(done());
  }
  Endpoint listen(const Endpoint& at) {
    listener =
        network.listen(at, [this](std::unique_ptr<Connection> c) { peers.push_back(std::make_unique<Peer>(std::move(c), *clock, *this)); })
            .value();
    return listener->endpoint();
  }
  Result<Peer*> connect(const Endpoint& to) {
    std::optional<Result<std::unique_ptr<Connection>>> out;
    network.connect(to, role, 5s, [&](Result<std::unique_ptr<Connection>> r) { out.emplace(std::move(r)); });
    run_until([&] { return out.has_value(); });
    if (!*out) return fail(out->error());
    peers.push_back(std::make_unique<Peer>(std::move(**out), *clock, *this));
    return peers.back().get();
  }

  void on_request(Peer&, Request request, Responder responder) override {
    ++requests;
    numbers.push_back(responder.number());
    if (request.method == kHold) return held.push_back(std::move(responder));
    if (request.method == kRefuse) return responder.fail(not_found("nothing here").with_hint("look elsewhere"));
    if (answer_bytes > 0) return responder.reply({{}, Bytes(answer_bytes), {}});
    responder.reply(std::move(request.message));
  }
  void on_notice(Peer&, Request) override {
    ++notices;
    if (react) react();
  }
  void on_closed(Peer&, const Error& why) override { closed.push_back(why.to_string()); }
  void on_drained(Peer& peer) override {
    EXPECT_EQ(peer.queued_bytes(), 0u);
    ++drained;
  }

  static constexpr std::uint16_t kEcho = 1, kHold = 2, kRefuse = 3;
  Loop loop;
  std::unique_ptr<Clock> clock = make_real_clock(loop);
  std::unique_ptr<Random> random = make_real_random();
  SocketNetwork network;
  Role role;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Responder> held;
  std::vector<std::uint64_t> numbers;  // the numbers of requests
  std::vector<std::string> closed;
  int requests = 0, notices = 0, drained = 0;
  std::function<void()> react;   // run for each notice
  std::size_t answer_bytes = 0;  // size of each answer; 0: the request's message
};

struct Kind {
  const char* name;
  Role role;
  RingOptions rings;
};

inline SocketOptions options_of(const Kind& kind) {
  SocketOptions out;
  out.rings = kind.rings;
  return out;
}

// Tests that all kinds of connections share.
class SocketTest : public testing::TestWithParam<Kind> {
 protected:
  SeededRandom seeded_{3};
  Token token_ = Token::random(seeded_);
  std::vector<Message> kept_;
  Side side_{token_, options_of(GetParam()), GetParam().role};  // both ends on one loop

  // Reads the listener's challenge.
  HelloMessage challenge_on(const Fd& caller) {
    HelloMessage out;
    bool come = false;
    side_.run_until([&] { return come |= recv(caller.get(), out.data(), out.size(), MSG_DONTWAIT) == ssize_t{sizeof out}; });
    return out;
  }
};

inline const auto kKinds = testing::Values(Kind{"sockets", Role::kClient, {}}, Kind{"rings", Role::kWorker, {256 << 10, 0}},
                                           Kind{"small_rings", Role::kWorker, {4 << 10, 3}});

}  // namespace shoal::runtime
