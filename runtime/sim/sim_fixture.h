// The common parts of tests on a simulated network: processes on hosts, and the ends of their connections.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sim/seeds.h"
#include "runtime/sim/sim_world.h"

namespace shoal::runtime {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kSeeds = 60;

inline Frame numbered(std::uint64_t n) {
  Frame f;
  f.method = 7;
  f.id = n;
  f.payload = Bytes::copy_of("payload " + std::to_string(n));
  return f;
}

// One end of a connection, which records received frames in order.
class End final : public ConnectionHandler {
 public:
  explicit End(std::unique_ptr<Connection> c) : connection(std::move(c)) { connection->start(*this); }
  void on_frame(Frame frame) override {
    EXPECT_FALSE(closed);
    received.push_back(frame.id);
    for (auto& fd : frame.fds) fds.push_back(std::move(fd));
    if (on_received) on_received();
  }
  void on_closed(Error why) override {
    EXPECT_FALSE(closed);
    closed = why;
    connection.reset();
  }
  void send(std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t n = from; connection && n < from + count; ++n) connection->send(numbered(n), Flush::kNow);
  }
  bool received_exactly(std::uint64_t from, std::uint64_t count) const {
    if (received.size() != count) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (received[i] != from + i) return false;
    }
    return true;
  }

  std::unique_ptr<Connection> connection;
  std::vector<std::uint64_t> received;
  std::vector<Fd> fds;
  std::optional<Error> closed;
  std::function<void()> on_received;
};

// A process that listens, connects, and owns its ends.
struct Process {
  explicit Process(std::unique_ptr<SimNetwork> n) : network(std::move(n)) {}
  Endpoint listen(const Endpoint& at) {
    auto made = network->listen(at, [this](std::unique_ptr<Connection> c) { accepted.push_back(std::make_unique<End>(std::move(c))); });
    EXPECT_TRUE(made) << made.error().to_string();
    listener = *std::move(made);
    return listener->endpoint();
  }
  Endpoint listen() { return listen(Endpoint::tcp(network->host(), 0)); }
  void connect(const Endpoint& to, Duration timeout = 5s) {
    network->connect(to, Role::kWorker, timeout, [this](Result<std::unique_ptr<Connection>> r) {
      if (r) {
        called = std::make_unique<End>(*std::move(r));
      } else {
        error = r.error();
      }
    });
  }
  std::unique_ptr<SimNetwork> network;
  std::vector<std::unique_ptr<End>> accepted;
  std::unique_ptr<End> called;
  std::optional<Error> error;
  std::unique_ptr<Listener> listener;
};

// Two hosts with one process each.
struct Pair {
  explicit Pair(std::uint64_t seed, SimNetworkOptions options = {}) : world({seed, options}) {}
  ~Pair() { EXPECT_EQ(leave(), "0 links, 0 timers"); }

  std::unique_ptr<Process> process(const std::string& host, pid_t pid) {
    return std::make_unique<Process>(world.fabric().attach(host, pid));
  }
  void meet() {
    const Endpoint at = b->listen();
    a->connect(at);
    ASSERT_TRUE(world.run_until([&] { return a->called && !b->accepted.empty(); }, 5s));
  }
  End& caller() { return *a->called; }
  End& listener() { return *b->accepted.at(0); }
  bool run_until(const std::function<bool()>& done, Duration limit = 60s) { return world.run_until(done, limit); }
  std::string leave() {
    world.fabric().heal();
    a.reset();
    b.reset();
    world.run_for(1h);
    return std::to_string(world.fabric().num_links()) + " links, " + std::to_string(world.clock().num_timers()) + " timers";
  }

  SimWorld world;
  std::unique_ptr<Process> a = process("a", 11);
  std::unique_ptr<Process> b = process("b", 22);
};

}  // namespace shoal::runtime
