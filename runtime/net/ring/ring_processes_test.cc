// Connections over rings between real processes, some of which are killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include <gtest/gtest.h>

#include "runtime/core/id.h"
#include "runtime/loop/busy_poller.h"
#include "runtime/loop/loop.h"
#include "runtime/net/socket/socket_network.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRing = 64 << 10;

// A process with one connection.
class End final : public ConnectionHandler {
 public:
  explicit End(const Token& token) : network(loop, *clock, *random, token, options()) {}
  ~End() {
    connection.reset();
    listener.reset();
    bool drained = false;
    network.stop([&] { drained = true; });
    run_until([&] { return drained; });
  }

  void run_until(const std::function<bool()>& done) {
    const auto end = clock->now() + 30s;
    while (!done() && clock->now() < end) loop.run_one(20ms, Loop::Idle::kSpin);
    EXPECT_TRUE(done());
  }
  void listen(const Endpoint& at) {
    listener = network.listen(at, [this](std::unique_ptr<Connection> c) { begin(std::move(c)); }).value();
  }
  void connect(const Endpoint& to) {
    network.connect(to, Role::kWorker, 5s, [this](Result<std::unique_ptr<Connection>> c) { begin(*std::move(c)); });
    run_until([this] { return connection != nullptr; });
  }
  void send(std::uint64_t id, std::size_t bytes) {
    Bytes payload(bytes);
    if (bytes) std::memset(payload.data(), static_cast<int>(id), bytes);
    connection->send({FrameKind::kNotice, 1, id, {}, std::move(payload), {}}, Flush::kNow);
  }

  void on_frame(Frame frame) override {
    intact &= frame.id == received + 1;
    for (std::size_t i = 0; i < frame.payload.size(); ++i) intact &= frame.payload.data()[i] == static_cast<std::byte>(frame.id);
    ++received;
    if (react) react(frame);
  }
  void on_closed(Error why) override {
    closed = why;
    connection.reset();
  }

  static SocketOptions options() {
    SocketOptions out;
    out.rings = {kRing, 0};
    return out;
  }
  Loop loop;
  std::unique_ptr<Clock> clock = make_real_clock(loop);
  std::unique_ptr<Random> random = make_real_random();
  SocketNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> connection;
  std::function<void(const Frame&)> react;
  std::uint64_t received = 0;
  bool intact = true;  // all frames in order
  std::optional<Error> closed;

 private:
  void begin(std::unique_ptr<Connection> c) {
    connection = std::move(c);
    connection->start(*this);
  }
};

class RingProcesses : public testing::Test {
 protected:
  ~RingProcesses() override {
    if (child_ > 0) kill_it();
  }
  // Forks a process that listens, and runs `behaviour` for its connection.
  template <class Behaviour>
  void start(Behaviour&& behaviour) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    child_ = fork();
    if (child_ == 0) {
      End end(token_);
      end.listen(at_);
      if (write(ready[1], "y", 1) != 1) _exit(1);
      end.run_until([&] { return end.connection != nullptr; });
      behaviour(end);
      _exit(0);
    }
    char yes = 0;
    ASSERT_EQ(read(ready[0], &yes, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  void kill_it() {
    kill(child_, SIGKILL);
    waitpid(std::exchange(child_, 0), nullptr, 0);
  }
  static void echo(End& end) {
    end.react = [&end](const Frame& frame) { end.send(frame.id, frame.payload.size()); };
    end.run_until([&] { return end.closed.has_value(); });
  }
  // Exchanges frames until both ends use their rings.
  static void warm_up(End& end) {
    for (std::uint64_t id = 1; id <= 10; ++id) {
      end.send(id, 10);
      end.run_until([&] { return end.received == id; });
    }
  }

  SeededRandom seeded_{3};
  const Token token_ = Token::random(seeded_);
  const Endpoint at_ = Endpoint::unix_at("shoal-test-" + hex(make_real_random()->next()));
  pid_t child_ = 0;
};

TEST_F(RingProcesses, FramesOfEverySizeGoThereAndBack) {
  start(echo);
  End end(token_);
  end.connect(at_);
  constexpr std::uint64_t kCount = 5000;
  for (std::uint64_t id = 1; id <= kCount; ++id) end.send(id, id % 500 == 0 ? 200'000 : id * 37 % 3000);
  end.run_until([&] { return end.received == kCount; });
  EXPECT_TRUE(end.intact);
  EXPECT_EQ(end.connection->queued_bytes(), 0u);
}

TEST_F(RingProcesses, APeerThatIsKilledWhileItsRingIsFullIsGone) {
  start([](End& end) {
    end.react = [&end](const Frame& frame) { frame.id <= 10 ? end.send(frame.id, 10) : static_cast<void>(raise(SIGSTOP)); };
    end.run_until([] { return false; });
  });
  End end(token_);
  end.connect(at_);
  warm_up(end);
  for (std::uint64_t id = 11; end.connection->queued_bytes() < 2 * kRing; ++id) end.send(id, 1000);
  for (int i = 0; i < 20; ++i) end.loop.run_one(1ms);
  EXPECT_FALSE(end.closed);
  kill_it();
  end.run_until([&] { return end.closed.has_value(); });
  EXPECT_EQ(end.closed->reason(), "Disconnected");
}

TEST_F(RingProcesses, APeerThatIsKilledWhileBothSleepIsGone) {
  start(echo);
  End end(token_);
  end.connect(at_);
  warm_up(end);
  end.run_until([&] { return end.loop.busy_poller().empty(); });
  usleep(20'000);  // until the peer sleeps as well
  kill_it();
  end.run_until([&] { return end.closed.has_value(); });
  EXPECT_EQ(end.closed->reason(), "Disconnected");
}

// A sender killed at any moment delivers a prefix of its frames, each complete.
TEST_F(RingProcesses, FramesOfAKilledPeerArriveAndNothingElse) {
  for (std::uint64_t round = 1; round <= 20; ++round) {
    start([](End& end) {
      for (std::uint64_t id = 1; true; ++id) {
        end.send(id, id % 100 == 0 ? 70'000 : id % 2000);
        while (end.connection && end.connection->queued_bytes() > 0) end.loop.run_one(1ms);
        if (id % 10 == 0) end.loop.poll();
        if (end.closed) _exit(1);
      }
    });
    End end(token_);
    end.connect(at_);
    for (std::uint64_t id = 1; id <= 2; ++id) end.send(id, 0);  // the first one offers the rings
    end.run_until([&] { return end.received >= 200 * round; });
    kill_it();
    end.run_until([&] { return end.closed.has_value(); });
    EXPECT_TRUE(end.intact);
    EXPECT_EQ(end.closed->reason(), "Disconnected");
  }
}

TEST_F(RingProcesses, AForkedChildKeepsNoConnectionOpen) {
  start(echo);
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  pid_t forked = 0;
  {
    End end(token_);
    end.connect(at_);
    warm_up(end);
    forked = fork();
    if (forked == 0) {
      end.loop.close_tracked();
      close(hold[1]);
      char byte = 0;
      (void)!read(hold[0], &byte, 1);  // until the parent closes the pipe
      _exit(0);
    }
  }
  int status = 1;
  waitpid(std::exchange(child_, 0), &status, 0);  // it exits on the socket's end, although its child still maps the rings
  EXPECT_EQ(status, 0);
  close(hold[1]);
  waitpid(forked, &status, 0);
  close(hold[0]);
}

}  // namespace
}  // namespace shoal::runtime
