#include "scheduler/node/peers/chunk_sender.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"
#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using runtime::Endpoint;
using runtime::Message;
using runtime::Peer;

constexpr std::uint64_t kPart = 1000, kHighWater = 2000;
constexpr std::uint16_t kSoon = 1, kLater = 2;

// A process that sends parts of one memory, and two that request parts. The payload of a request is the part's offset.
class ChunkSenderTest : public testing::Test, public runtime::PeerHandler {
 protected:
  ChunkSenderTest() {
    memory_ = *runtime::make_memory("test", 100 * kPart);
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(runtime::write_at(memory_, i * kPart, Bytes::copy_of(std::to_string(i)).span()));
    listener_ = *server_->listen(Endpoint::tcp("server", 0), [this](std::unique_ptr<runtime::Connection> c) {
      clients_.push_back(std::make_unique<Peer>(std::move(c), world_.clock(), *this, clients_.size()));
    });
    for (int i = 0; i < 2; ++i) {
      callers_.push_back(nullptr);
      network_->connect(listener_->endpoint(), runtime::Role::kNode, 5s, [this, i](Result<std::unique_ptr<runtime::Connection>> c) {
        callers_[static_cast<std::size_t>(i)] = std::make_unique<Peer>(*std::move(c), world_.clock(), *this);
      });
      EXPECT_TRUE(world_.run_until([this] { return callers_.back() && clients_.size() == callers_.size(); }, 10s));
    }
  }

  void on_request(Peer& peer, runtime::Request request, runtime::Responder responder) override {
    const auto offset = std::stoull(std::string(request.message.payload.view()));
    parts_.enqueue(peer.number(), {[this, offset]() -> Result<ChunkSender::Part> {
                                     ++looked_up_;
                                     if (offset >= 100 * kPart) return fail(not_found("no such part"));
                                     SHOAL_TRY(Fd memory, runtime::duplicate(memory_));
                                     return ChunkSender::Part{std::move(memory), offset, kPart, Bytes::copy_of("about it")};
                                   },
                                   std::move(responder), request.method == kSoon});
  }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer& peer, const Error&) override { parts_.closed(peer.number()); }
  void on_drained(Peer& peer) override { parts_.drained(peer.number()); }

  void ask(std::size_t caller, std::uint64_t part, std::uint16_t method = kLater) {
    Message message;
    message.payload = Bytes::copy_of(std::to_string(part * kPart));
    callers_[caller]->call(method, std::move(message), Peer::kNoTimeout, [this, part](Result<Message> r) {
      if (r) {
        EXPECT_EQ(r->payload.size(), kPart);
        EXPECT_EQ(std::string(r->payload.view().data()), std::to_string(part));
        EXPECT_EQ(r->body.view(), "about it");
        came_.push_back(part);
      } else {
        failed_.push_back(r.error().message());
      }
    });
  }

  runtime::SimWorld world_{{}};
  std::unique_ptr<runtime::SimNetwork> server_ = world_.fabric().attach("server", 1), network_ = world_.fabric().attach("client", 2);
  std::unique_ptr<runtime::Listener> listener_;
  std::vector<std::function<void()>> beside_;  // pending work for other threads
  std::vector<std::unique_ptr<Peer>> clients_, callers_;
  ChunkSender parts_{world_.clock(),
                     {.aside = [this](auto work, auto then) { aside(std::move(work), std::move(then)); }, .high_water_bytes = kHighWater},
                     [this](std::uint64_t n) {
                       EXPECT_LE(clients_[n]->queued_bytes(), kHighWater + 2 * kPart);
                       return clients_[n]->queued_bytes();
                     }};
  bool slow_ = false;
  Fd memory_;
  int looked_up_ = 0;
  std::vector<std::uint64_t> came_;
  std::vector<std::string> failed_;

 private:
  void aside(std::function<void()> work, std::function<void()> then) {
    work();
    if (!slow_) return then();
    beside_.push_back(std::move(then));
  }
};

TEST_F(ChunkSenderTest, PartsArriveInOrderAndReadsFollowTheConnection) {
  for (std::uint64_t i = 0; i < 50; ++i) ask(0, i);
  ASSERT_TRUE(world_.run_until([this] { return looked_up_ > 0; }, 10s));
  world_.run_for(1us);
  EXPECT_LE(looked_up_, 2);  // as many as fill the queue of the connection
  EXPECT_TRUE(world_.run_until([this] { return came_.size() == 50; }, 60s));
  EXPECT_TRUE(std::is_sorted(came_.begin(), came_.end()));
}

TEST_F(ChunkSenderTest, UrgentPartsOvertakeTheOthers) {
  for (std::uint64_t i = 0; i < 50; ++i) ask(0, i);
  ask(0, 99, kSoon);
  EXPECT_TRUE(world_.run_until([this] { return came_.size() == 51; }, 60s));
  EXPECT_LT(std::find(came_.begin(), came_.end(), 99u) - came_.begin(), 10);
}

TEST_F(ChunkSenderTest, AnUnreadableObjectFailsAlone) {
  ask(0, 1);
  ask(0, 1000);
  ask(0, 2);
  EXPECT_TRUE(world_.run_until([this] { return came_.size() + failed_.size() == 3; }, 60s));
  EXPECT_EQ(came_, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(failed_, std::vector<std::string>{"no such part"});
}

TEST_F(ChunkSenderTest, ASlowReadHoldsUpItsOwnConnectionAlone) {
  slow_ = true;
  for (std::uint64_t i = 0; i < 3; ++i) ask(0, i);
  EXPECT_TRUE(world_.run_until([this] { return beside_.size() == 1; }, 10s));
  ask(1, 50);
  EXPECT_TRUE(world_.run_until([this] { return beside_.size() == 2; }, 10s));
  world_.run_for(1s);
  EXPECT_EQ(looked_up_, 2);  // one for each connection
  while (came_.size() < 4) {
    ASSERT_FALSE(beside_.empty());
    const auto then = std::move(beside_.back());
    beside_.pop_back();
    then();
    world_.run_for(1s);
  }
  EXPECT_EQ(came_.front(), 50u);
}

TEST_F(ChunkSenderTest, AConnectionThatClosesMeanwhileIsSentNothing) {
  slow_ = true;
  for (std::uint64_t i = 0; i < 3; ++i) ask(0, i);
  EXPECT_TRUE(world_.run_until([this] { return beside_.size() == 1; }, 10s));
  callers_[0].reset();
  world_.run_for(1s);
  beside_.front()();
  world_.run_for(1s);
  EXPECT_EQ(looked_up_, 1);
  EXPECT_TRUE(came_.empty());
}

}  // namespace
}  // namespace shoal::scheduler
