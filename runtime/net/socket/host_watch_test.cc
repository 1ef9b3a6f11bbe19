#include "runtime/net/socket/host_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/core/fd.h"
#include "runtime/loop/loop.h"
#include "runtime/sim/sim_clock.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

// A watched connection within this host, over loopback.
class HostWatchTest : public testing::Test {
 protected:
  HostWatchTest() {
    const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* address = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(listener.get(), address, sizeof at), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), address, &length), 0);
    here_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(here_.get(), address, sizeof at), 0);
    there_ = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  void watch(Duration unanswered) {
    watch_.emplace(*clock_, here_.get(), unanswered, [this] {
      dead_ = true;
      watch_->stop();
    });
  }
  void write_until_full() {
    const std::vector<char> bytes(1 << 20);
    while (send(here_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    watch_->wrote();
  }
  // As if that host were dead: its kernel drops all packets, since each comes with a smaller time to live, and answers nothing.
  void cut() {
    const int most = 255;
    ASSERT_EQ(setsockopt(there_.get(), IPPROTO_IP, IP_MINTTL, &most, sizeof most), 0);
  }
  // As if the interface of this host were gone: the socket is bound to one that does not exist.
  void lose_interface() {
    const int none = 1 << 30;
    ASSERT_EQ(setsockopt(here_.get(), SOL_SOCKET, SO_BINDTOIFINDEX, &none, sizeof none), 0);
  }
  static tcp_info info_of(const Fd& socket) {
    tcp_info out{};
    socklen_t length = sizeof out;
    EXPECT_EQ(getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &out, &length), 0);
    return out;
  }
  void run_until(const std::function<bool()>& done) {
    const auto end = clock_->now() + 30s;
    while (!done() && clock_->now() < end) loop_.run_one(10ms);
    EXPECT_TRUE(done());
  }

  Loop loop_;
  std::unique_ptr<Clock> clock_ = make_real_clock(loop_);
  Fd here_, there_;
  std::optional<HostWatch> watch_;
  bool dead_ = false;
};

TEST_F(HostWatchTest, AHostWhoseProcessReadsNothingIsNotDead) {
  watch(1500ms);
  write_until_full();
  const auto established = info_of(here_).tcpi_state;
  const auto is_open = [&] { return !dead_ && info_of(here_).tcpi_state == established; };
  run_until([&] { return !is_open() || info_of(here_).tcpi_backoff >= 4; });  // the last attempts are further apart than the limit
  EXPECT_TRUE(is_open());
}

TEST_F(HostWatchTest, AHostThatAcknowledgesNothingIsDead) {
  watch(200ms);
  cut();
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  watch_->wrote();
  run_until([&] { return dead_; });
}

TEST_F(HostWatchTest, BytesThatWereSentBeforeTheWatchAreWatched) {
  cut();
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  watch(200ms);
  run_until([&] { return dead_; });
}

// The last bytes leave in the tick of the last answer, and no attempt to send them again leaves this host.
TEST_F(HostWatchTest, AHostToWhichNothingLeavesIsDead) {
  watch(200ms);
  char byte = 0;
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  ASSERT_EQ(recv(there_.get(), &byte, 1, 0), 1);
  ASSERT_EQ(send(there_.get(), "x", 1, 0), 1);
  ASSERT_EQ(recv(here_.get(), &byte, 1, 0), 1);
  cut();
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  lose_interface();
  watch_->wrote();
  run_until([&] { return dead_; });
}

// As on a path that drops large packets.
TEST_F(HostWatchTest, KeepAliveProbesOfAHostThatAcknowledgesNothingDoNotCount) {
  const auto set = [&](int level, int name, int value) { ASSERT_EQ(setsockopt(there_.get(), level, name, &value, sizeof value), 0); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 100);
  watch(2s);
  cut();
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  watch_->wrote();
  const auto before = info_of(here_).tcpi_segs_in;
  run_until([&] { return dead_; });
  EXPECT_GT(info_of(here_).tcpi_segs_in, before);
}

TEST_F(HostWatchTest, AHostThatDiesWhileItsProcessReadsNothingIsDead) {
  watch(1500ms);
  write_until_full();
  const auto before = info_of(there_).tcpi_segs_in;
  run_until([&] { return dead_ || info_of(there_).tcpi_segs_in > before; });
  EXPECT_FALSE(dead_);
  cut();
  run_until([&] { return dead_; });
}

TEST_F(HostWatchTest, NothingIsWatchedOnceAllIsAcknowledged) {
  SimClock timers;
  HostWatch watch(timers, here_.get(), 10s, [] { FAIL(); });
  timers.fire_next();
  EXPECT_EQ(timers.num_timers(), 0u);
  ASSERT_EQ(send(here_.get(), "x", 1, 0), 1);
  watch.wrote();
  EXPECT_EQ(timers.num_timers(), 1u);
  run_until([&] { return info_of(here_).tcpi_unacked == 0; });
  timers.fire_next();
  EXPECT_EQ(timers.num_timers(), 0u);
}

}  // namespace
}  // namespace shoal::runtime
