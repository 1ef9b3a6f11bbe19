// Connecting while a name server, replaced by this file's getaddrinfo, does not answer.
#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"
#include "runtime/net/socket/socket_network.h"

namespace {

std::mutex mutex;
std::condition_variable changed;
bool answers = false;

}  // namespace

// Resolves "slow.example" to 127.0.0.2 and 127.0.0.1 once the test lets it answer.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::strcmp(host, "slow.example") != 0 || (hints->ai_flags & AI_NUMERICHOST) != 0) return real(host, service, hints, found);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [] { return answers; });
  }
  if (const int error = real("127.0.0.2", service, hints, found); error != 0) return error;
  return real("127.0.0.1", service, hints, &(*found)->ai_next);
}

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

class NamesTest : public testing::Test {
 protected:
  ~NamesTest() override {
    bool drained = false;
    network_.stop([&] { drained = true; });
    run_until([&] { return drained; });
  }
  void run_until(const std::function<bool()>& done) {
    while (!done()) loop_.run_one(100ms);
  }
  static void answer() {
    {
      const std::lock_guard lock(mutex);
      answers = true;
    }
    changed.notify_all();
  }

  Loop loop_;
  std::unique_ptr<Clock> clock_ = make_real_clock(loop_);
  std::unique_ptr<Random> random_ = make_real_random();
  SocketNetwork network_{loop_, *clock_, *random_, Token::random(*random_), {}};
};

TEST_F(NamesTest, TheLoopGoesOnWhileANameIsLookedUpAndEveryAddressIsTried) {
  std::vector<std::unique_ptr<Connection>> accepted;
  const auto listener = network_.listen(Endpoint::tcp("127.0.0.1", 0), [&](auto c) { accepted.push_back(std::move(c)); }).value();
  std::optional<Result<std::unique_ptr<Connection>>> out;
  network_.connect(Endpoint::tcp("slow.example", listener->endpoint().port), Role::kClient, 60s,
                   [&](auto r) { out.emplace(std::move(r)); });
  int fair_share_queue = 0;
  const std::function<void()> turn = [&] {
    if (++fair_share_queue < 10) loop_.post(turn);
  };
  turn();
  run_until([&] { return fair_share_queue == 10; });
  EXPECT_FALSE(out);
  answer();
  run_until([&] { return out && accepted.size() == 1; });
  EXPECT_TRUE(*out) << out->error().to_string();
}

TEST_F(NamesTest, TheResolvedAddressDecides) {
  answer();
  const auto refused = network_.listen(Endpoint::tcp("192.0.2.1", 0), {});
  EXPECT_EQ(refused.error().reason(), "TlsRequired");
}

}  // namespace
}  // namespace shoal::runtime
