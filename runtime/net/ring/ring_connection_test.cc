#include "runtime/net/ring/ring_connection.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "runtime/core/id.h"
#include "runtime/loop/busy_poller.h"
#include "runtime/loop/loop.h"
#include "runtime/net/peer.h"
#include "runtime/shm/memory.h"
#include "runtime/shm/ring.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCapacity = 4096;
constexpr std::uint16_t kOffer = 1, kAccept = 2, kRefuse = 3, kStart = 4, kBell = 5;

// The fake socket under a connection.
struct Wire {
  std::vector<Frame> sent;
  std::vector<Frame> arrived;  // unread frames
  ConnectionHandler* handler = nullptr;
  bool closed = false;

  int count(std::uint16_t link_method) const {
    int out = 0;
    for (const auto& f : sent) out += f.kind == FrameKind::kLink && f.method == link_method;
    return out;
  }
};

class PlayedSocket final : public Connection {
 public:
  explicit PlayedSocket(Wire& wire) : wire_(wire) {}
  ~PlayedSocket() override { wire_.closed = true; }
  void start(ConnectionHandler& handler) override { wire_.handler = &handler; }
  void send(Frame frame, Flush) override { wire_.sent.push_back(std::move(frame)); }
  std::size_t queued_bytes() const override { return 0; }
  void read_arrived() override {
    for (auto& frame : std::exchange(wire_.arrived, {})) wire_.handler->on_frame(std::move(frame));
  }
  const PeerIdentity& identity() const override { return identity_; }
  const FrameLimits& limits() const override { return limits_; }

 private:
  Wire& wire_;
  const PeerIdentity identity_{Role::kWorker, 1, true, 1};
  const FrameLimits limits_;
};

Frame notice(std::uint64_t id, std::size_t payload = 0) {
  Bytes bytes(payload);
  if (payload) std::memset(bytes.data(), static_cast<int>(id), payload);
  return {FrameKind::kNotice, 1, id, {}, std::move(bytes), {}};
}

Frame link(std::uint16_t method, std::vector<Fd> fds = {}) { return {FrameKind::kLink, method, 0, {}, {}, std::move(fds)}; }

// A listener's connection; the test plays the peer, with its socket and rings.
class RingConnectionTest : public testing::Test, public ConnectionHandler {
 protected:
  RingConnectionTest() {
    options_ = {kCapacity, 0};
    make(false);
  }
  void make(bool calls) {
    wire_ = {};
    connection_ = make_ring_connection(loop_, std::make_unique<PlayedSocket>(wire_), calls, options_, max_queued_bytes_, traffic_);
    connection_->start(*this);
  }
  void offer() {
    std::vector<Fd> fds;
    fds.push_back(duplicate(memory_).value());
    wire_.handler->on_frame(link(kOffer, std::move(fds)));
  }
  void begin() {
    offer();
    wire_.handler->on_frame(link(kStart));
    ASSERT_EQ(wire_.count(kAccept), 1);
  }
  // Writes a record as the peer does.
  Wake record(std::span<const std::byte> bytes) {
    const auto to = ours_.reserve(bytes.size()).value().value();
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
    return ours_.commit();
  }
  Wake put(const Frame& frame) {
    std::vector<std::byte> bytes(frame.wire_bytes());
    const auto header = FrameHeader::for_frame(frame).encode();
    std::memcpy(bytes.data(), header.data(), header.size());
    if (!frame.payload.empty()) std::memcpy(bytes.data() + header.size(), frame.payload.data(), frame.payload.size());
    return record(bytes);
  }
  // Returns the ids of frames that the connection has written into its ring since the last call. 0 stands for a frame
  // that went over the socket.
  std::vector<std::uint64_t> written() {
    std::vector<std::uint64_t> out;
    while (const auto r = theirs_.peek().value()) {
      std::uint64_t id = 0;
      if (!r->empty()) std::memcpy(&id, r->data() + 8, 8);
      out.push_back(id);
      rung_ += theirs_.pop() == Wake::kBell;
    }
    return out;
  }
  void poll() { loop_.poll(); }
  // Makes the loop idle, so that it sleeps.
  void sleep() {
    loop_.run_one(1ms);
    loop_.run_one(1ms);
    ASSERT_TRUE(loop_.busy_poller().empty());
  }

  void on_frame(Frame frame) override {
    seen_.push_back(frame.id);
    if (react_) react_();
  }
  void on_closed(Error why) override {
    closed_.push_back(why.to_string());
    connection_.reset();
  }
  void on_drained() override { ++drained_; }

  using Ids = std::vector<std::uint64_t>;
  Loop loop_;
  RingOptions options_;
  std::size_t max_queued_bytes_ = 256u << 20;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  Wire wire_;
  const Fd memory_ = make_memory("rings", 2 * Ring::bytes(kCapacity)).value();
  const Mapping mapping_ = map(memory_, 2 * Ring::bytes(kCapacity), Access::kReadWrite).value();
  RingWriter ours_{mapping_.data(), kCapacity};
  RingReader theirs_{mapping_.data() + Ring::bytes(kCapacity), kCapacity};
  int rung_ = 0;  // bells from written(): the connection slept for lack of room
  Ids seen_;
  std::vector<std::string> closed_;
  int drained_ = 0;
  std::function<void()> react_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(RingConnectionTest, FramesBeforeTheSwitchGoThroughTheSocketAndLaterOnesDoNot) {
  wire_.handler->on_frame(notice(1));
  connection_->send(notice(10), Flush::kNow);
  offer();
  connection_->send(notice(11), Flush::kNow);
  wire_.handler->on_frame(notice(2));  // before the peer's kStart
  wire_.handler->on_frame(link(kStart));
  put(notice(3, 100));
  poll();
  EXPECT_EQ(seen_, (Ids{1, 2, 3}));
  EXPECT_EQ(wire_.sent.size(), 2u);  // frame 10 and kAccept
  EXPECT_EQ(written(), (Ids{11}));
  EXPECT_EQ(traffic_->sent, 2u);
  EXPECT_EQ(traffic_->received, 3u);
}

TEST_F(RingConnectionTest, ACallerOffersOnceAndGoesOverWhenItIsAccepted) {
  options_.after_frames = 2;
  make(true);
  for (std::uint64_t id = 1; id <= 5; ++id) connection_->send(notice(id), Flush::kNow);
  ASSERT_EQ(wire_.sent.size(), 6u);
  EXPECT_EQ(wire_.sent[2].method, kOffer);
  EXPECT_EQ(wire_.count(kOffer), 1);
  wire_.handler->on_frame(link(kAccept));
  EXPECT_EQ(wire_.count(kStart), 1);
  connection_->send(notice(6), Flush::kNow);
  EXPECT_EQ(wire_.sent.size(), 7u);
}

TEST_F(RingConnectionTest, ACallerThatIsRefusedStaysWithTheSocket) {
  make(true);
  connection_->send(notice(1), Flush::kNow);
  wire_.handler->on_frame(link(kRefuse));
  connection_->send(notice(2), Flush::kNow);
  wire_.handler->on_frame(notice(3));
  EXPECT_EQ(wire_.sent.size(), 3u);
  EXPECT_EQ(wire_.count(kOffer), 1);
  EXPECT_EQ(seen_, (Ids{3}));
}

TEST_F(RingConnectionTest, MemoryThatIsNotARingsIsRefused) {
  const auto offered = [&](Fd fd) {
    make(false);
    std::vector<Fd> fds;
    fds.push_back(std::move(fd));
    wire_.handler->on_frame(link(kOffer, std::move(fds)));
    return wire_.count(kRefuse) == 1 && wire_.count(kAccept) == 0;
  };
  EXPECT_TRUE(offered(make_memory("small", 4096).value()));
  Fd loose(memfd_create("loose", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(loose.get(), static_cast<off_t>(2 * Ring::bytes(kCapacity))), 0);
  EXPECT_TRUE(offered(std::move(loose)));
  make(false);
  wire_.handler->on_frame(link(kOffer));  // an offer whose descriptor was lost
  EXPECT_EQ(wire_.count(kRefuse), 1);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(RingConnectionTest, FramesThatDoNotFitTheRingKeepTheirOrder) {
  begin();
  put(notice(1));
  record({});
  put(notice(3));
  poll();
  EXPECT_EQ(seen_, (Ids{1}));
  sleep();  // the socket ends this sleep
  wire_.handler->on_frame(notice(2));
  poll();
  EXPECT_EQ(seen_, (Ids{1, 2, 3}));
  put(notice(4));
  record({});
  put(notice(6));
  wire_.handler->on_frame(notice(5));  // before the loop has polled the ring
  poll();
  EXPECT_EQ(seen_, (Ids{1, 2, 3, 4, 5, 6}));

  connection_->send(notice(10), Flush::kNow);
  connection_->send(notice(11, 10'000), Flush::kNow);
  Frame with_fd = notice(12);
  with_fd.fds.emplace_back(dup(0));
  connection_->send(std::move(with_fd), Flush::kNow);
  connection_->send(notice(13), Flush::kNow);
  EXPECT_EQ(written(), (Ids{10, 0, 0, 13}));
  ASSERT_EQ(wire_.sent.size(), 3u);
  EXPECT_EQ(wire_.sent[1].id, 11u);
  EXPECT_EQ(wire_.sent[2].fds.size(), 1u);
}

TEST_F(RingConnectionTest, ArrivedFramesAreInTheSocketAndInTheRing) {
  begin();
  put(notice(1));
  record({});
  put(notice(3));
  wire_.arrived.push_back(notice(2));
  connection_->read_arrived();
  EXPECT_EQ(seen_, (Ids{1, 2, 3}));
}

TEST_F(RingConnectionTest, ASleeperIsWokenOnceAndOneThatLooksIsNot) {
  begin();
  EXPECT_EQ(put(notice(1)), Wake::kNone);
  poll();
  sleep();
  EXPECT_EQ(put(notice(2)), Wake::kBell);
  EXPECT_EQ(put(notice(3)), Wake::kNone);
  wire_.handler->on_frame(link(kBell));
  poll();
  EXPECT_EQ(put(notice(4)), Wake::kNone);
  poll();
  EXPECT_EQ(seen_, (Ids{1, 2, 3, 4}));

  connection_->send(notice(10), Flush::kNow);
  EXPECT_EQ(wire_.count(kBell), 0);
  written();
  ASSERT_TRUE(theirs_.arm());
  connection_->send(notice(11), Flush::kNow);
  connection_->send(notice(12), Flush::kNow);
  EXPECT_EQ(wire_.count(kBell), 1);
}

TEST_F(RingConnectionTest, FramesThatDoNotFitWaitAndAreReported) {
  begin();
  std::uint64_t id = 0;
  while (connection_->queued_bytes() == 0) connection_->send(notice(++id, 500), Flush::kNow);
  connection_->send(notice(++id, 10'000), Flush::kNow);  // queued behind the frames
  connection_->send(notice(++id, 500), Flush::kNow);
  sleep();
  EXPECT_EQ(drained_, 0);
  Ids all = written();
  EXPECT_EQ(all.size(), id - 3);
  EXPECT_EQ(rung_, 1);
  wire_.handler->on_frame(link(kBell));
  poll();
  EXPECT_EQ(connection_->queued_bytes(), 0u);
  EXPECT_EQ(drained_, 1);
  for (const auto i : written()) all.push_back(i);
  Ids expected;
  for (std::uint64_t i = 1; i <= id; ++i) expected.push_back(i == id - 1 ? 0 : i);
  EXPECT_EQ(all, expected);
  EXPECT_EQ(wire_.sent.back().id, id - 1);
}

TEST_F(RingConnectionTest, APeerThatDoesNotReadIsDroppedAtTheBound) {
  max_queued_bytes_ = 10'000;
  make(false);
  begin();
  for (std::uint64_t i = 1; i <= 30; ++i) connection_->send(notice(i, 1000), Flush::kNow);
  EXPECT_TRUE(closed_.empty());  // no on_closed inside send()
  poll();
  ASSERT_EQ(closed_.size(), 1u);
  EXPECT_NE(closed_[0].find("does not read"), std::string::npos);
  EXPECT_TRUE(wire_.closed);
}

TEST_F(RingConnectionTest, APeerThatDoesNotReadItsAnswersSendsNoFurtherRequests) {
  max_queued_bytes_ = 80'000;
  make(false);
  begin();
  react_ = [this] { connection_->send(notice(seen_.back(), 1000), Flush::kNow); };
  for (std::uint64_t i = 1; i <= 50; ++i) put(notice(i));
  for (int turn = 0; turn < 10; ++turn) poll();
  const std::size_t seen = seen_.size();
  EXPECT_LT(seen, 20u);
  sleep();  // and the loop does not spin
  EXPECT_EQ(seen_.size(), seen);
  Ids read;
  for (int turn = 0; turn < 100 && read.size() < 50; ++turn) {
    for (const auto id : written()) read.push_back(id);
    wire_.handler->on_frame(link(kBell));
    poll();
  }
  EXPECT_EQ(read.size(), 50u);
  EXPECT_EQ(seen_.size(), 50u);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(RingConnectionTest, FramesSentBeforeTheCloseAreDelivered) {
  begin();
  for (std::uint64_t i = 1; i <= 50; ++i) put(notice(i));
  ours_.reserve(100).value();  // killed before its commit
  wire_.handler->on_closed(unavailable("gone"));
  EXPECT_EQ(seen_.size(), 50u);
  EXPECT_EQ(closed_, (std::vector<std::string>{unavailable("gone").to_string()}));
}

TEST_F(RingConnectionTest, NothingAfterAMissingFrameIsDelivered) {
  begin();
  put(notice(1));
  record({});
  put(notice(3));
  wire_.handler->on_closed(unavailable("gone"));
  EXPECT_EQ(seen_, (Ids{1}));
  EXPECT_EQ(closed_.size(), 1u);
}

TEST_F(RingConnectionTest, TheHandlerMayEndItInTheMiddle) {
  begin();
  react_ = [this] {
    if (seen_.size() == 2) connection_.reset();
  };
  for (std::uint64_t i = 1; i <= 5; ++i) put(notice(i));
  poll();
  EXPECT_EQ(seen_, (Ids{1, 2}));
  EXPECT_TRUE(wire_.closed);
  EXPECT_TRUE(closed_.empty());
  make(false);
  seen_.clear();
  wire_.handler->on_frame(notice(1));
  wire_.handler->on_frame(notice(2));
  EXPECT_TRUE(wire_.closed);
}

TEST_F(RingConnectionTest, GarbageEndsTheConnectionAndNothingElse) {
  const std::map<std::string, std::function<void()>> ways = {
      {"a position", [&] { *reinterpret_cast<std::uint64_t*>(mapping_.data()) = kCapacity + 8; }},
      {"a length",
       [&] {
         put(notice(1));
         *reinterpret_cast<std::uint64_t*>(mapping_.data() + Ring::kHeaderBytes) = 1'000'000;
       }},
      {"the other position",
       [&] {
         *reinterpret_cast<std::uint64_t*>(mapping_.data() + Ring::bytes(kCapacity) + 64) = 1 << 20;
         for (int i = 0; i < 10 && connection_; ++i) connection_->send(notice(1, 1000), Flush::kNow);
       }},
      {"a short record", [&] { record(std::vector<std::byte>(5)); }},
      {"a record of zeros", [&] { record(std::vector<std::byte>(24)); }},
      {"a record longer than its frame",
       [&] {
         std::vector<std::byte> bytes(100);
         const auto header = FrameHeader::for_frame(notice(1, 8)).encode();
         std::memcpy(bytes.data(), header.data(), header.size());
         record(bytes);
       }},
      {"a link's word in the ring", [&] { put(link(kBell)); }},
      {"a socket's frame without a place", [&] { wire_.handler->on_frame(notice(1)); }},
      {"a second offer", [&] { offer(); }},
      {"a second start", [&] { wire_.handler->on_frame(link(kStart)); }},
      {"an accept of nothing", [&] { wire_.handler->on_frame(link(kAccept)); }},
      {"an unknown word", [&] { wire_.handler->on_frame(link(77)); }},
  };
  for (const auto& [what, spoil] : ways) {
    closed_.clear();
    seen_.clear();
    std::memset(mapping_.data(), 0, mapping_.size());
    ours_ = RingWriter(mapping_.data(), kCapacity);
    make(false);
    begin();
    spoil();
    poll();
    ASSERT_EQ(closed_.size(), 1u) << what;
    EXPECT_NE(closed_[0].find("InvalidArgument"), std::string::npos) << what << ": " << closed_[0];
    EXPECT_TRUE(seen_.empty()) << what;
    EXPECT_TRUE(wire_.closed) << what;
  }
}

}  // namespace
}  // namespace shoal::runtime
