#include "runtime/net/socket/frame_reader.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "runtime/sim/sim_clock.h"

namespace shoal::runtime {
namespace {

// Limits this process's address space (RLIMIT_AS) for its lifetime.
class LittleMemory {
 public:
  explicit LittleMemory(std::size_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_AS, &now);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// Reads what a peer sends, without a socket.
class FrameReaderTest : public testing::Test, public Budget::Owner {
 protected:
  void make(std::unique_ptr<Budget::Account> account, const FrameReader::Limits& limits) {
    reader_.reset();
    account_ = std::move(account);
    account_->set_owner(*this);
    reader_.emplace(limits, *account_);
  }
  // Gives bytes to the reader as reads of a socket do, until it has all, waits, or fails.
  Result<void> send(const FrameHeader& header, std::size_t bytes) {
    std::vector<std::byte> all(FrameHeader::kBytes + bytes, std::byte{7});
    std::ranges::copy(header.encode(), all.begin());
    for (std::size_t at = 0; at < all.size() && !reader_->waits();) {
      const auto room = reader_->room(budget_->scratch());
      const std::size_t n = std::min(room.size(), all.size() - at);
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(at), n, room.begin());
      SHOAL_OK(reader_->arrived(n, frames_));
      at += n;
    }
    return {};
  }
  static FrameHeader part(const PartOf& of, std::size_t bytes, std::uint16_t version = VersionRange{}.newest) {
    return {0, static_cast<std::uint32_t>(bytes), of.encode(version), static_cast<std::uint16_t>(LinkMethod::kPart), FrameKind::kLink, 0};
  }

  void on_room() override { has_room_ = true; }
  void close_later(Error) override {}
  std::uint64_t received_bytes() const override { return 0; }
  std::uint64_t taken_bytes() override { return 0; }

  static constexpr std::uint64_t kMiB = 1 << 20;
  SimClock clock_;
  std::shared_ptr<Budget> budget_ = std::make_shared<Budget>(clock_, Budget::Options{.max_arriving_bytes = 8 * kMiB});
  std::unique_ptr<Budget::Account> account_;
  std::optional<FrameReader> reader_;
  std::vector<Frame> frames_;
  bool has_room_ = false;
};

TEST_F(FrameReaderTest, AMessageIsRefusedByItsMethodWhenItIsAnnounced) {
  const FrameReader::Limits limits{
      {.max_payload_of = [](FrameKind, std::uint16_t method) -> std::uint64_t { return method == 100 ? 16ull << 30 : kMiB; }}, 16ull << 30};
  const auto announce = [&](const FrameHeader& header) {
    make(budget_->admit("a").value(), limits);
    const auto sent = send(header, 0);
    return sent ? std::string() : sent.error().message();
  };
  EXPECT_NE(announce(part({16ull << 30, 12, FrameKind::kRequest}, 1000)).find("limit of that method"), std::string::npos);
  EXPECT_NE(announce({0, 2 * kMiB, 1, 12, FrameKind::kRequest, 0}).find("limit of that method"), std::string::npos);
  EXPECT_NE(announce(part({16ull << 30, 0, static_cast<FrameKind>(0)}, 1000)).find("does not announce"), std::string::npos);
  EXPECT_EQ(announce(part({3 * kMiB, 100, FrameKind::kRequest}, 1000)), "");
  EXPECT_NE(announce({0, 3 * kMiB - 1000, 1, 12, FrameKind::kRequest, 0}), "");
}

TEST_F(FrameReaderTest, TheFrameThatEndsAMessageHasTheAnnouncedMethod) {
  make(budget_->admit("a").value(), {{}, 16ull << 30});
  ASSERT_TRUE(send(part({kMiB, 100, FrameKind::kRequest}, 1000), 1000));
  EXPECT_FALSE(send({0, static_cast<std::uint32_t>(kMiB - 1000), 1, 12, FrameKind::kRequest, 0}, 0));
}

TEST_F(FrameReaderTest, PartsOfTheFirstWireVersionAnnounceTheirBytesAlone) {
  const FrameReader::Limits limits{
      {.max_payload_of = [](FrameKind, std::uint16_t method) -> std::uint64_t { return method == 100 ? 16ull << 30 : 1000; }},
      16ull << 30,
      1};
  const auto answer = [&](std::uint16_t method) {
    make(budget_->admit("a").value(), limits);
    for (int i = 0; i < 2; ++i) {
      if (const auto sent = send(part({kMiB}, 100'000, 1), 100'000); !sent) return sent.error().message();
    }
    const auto sent = send({0, static_cast<std::uint32_t>(kMiB - 200'000), 1, method, FrameKind::kRequest, 0}, kMiB - 200'000);
    return sent ? std::string() : sent.error().message();
  };
  EXPECT_EQ(answer(100), "");
  ASSERT_EQ(frames_.size(), 1u);
  EXPECT_EQ(frames_[0].method, 100);
  EXPECT_EQ(frames_[0].payload.size(), kMiB);
  EXPECT_NE(answer(12).find("limit of that method"), std::string::npos);
}

TEST_F(FrameReaderTest, PartsOfTheFirstWireVersionAreRefusedWhereNoMessageIsLargerThanAFrame) {
  const FrameLimits frame;
  make(budget_->admit("a").value(), {frame, frame.max_payload_bytes, 1});
  const auto sent = send(part({frame.max_payload_bytes}, 1000, 1), 1000);
  ASSERT_FALSE(sent);
  EXPECT_NE(sent.error().message().find("no message is larger than a frame"), std::string::npos);
  EXPECT_FALSE(account_->holds_memory());
}

TEST_F(FrameReaderTest, AMessageWaitsForMemoryAndArrivesWhole) {
  auto other = budget_->admit("a").value();
  other->set_owner(*this);
  ASSERT_TRUE(other->take(2 * kMiB));
  make(budget_->admit("a").value(), {{}, 16ull << 30});
  const FrameHeader header{0, 100'000, 9, 12, FrameKind::kRequest, 0};
  ASSERT_TRUE(send(header, 30'000));
  EXPECT_TRUE(reader_->waits());
  EXPECT_TRUE(frames_.empty());
  other->give_back();
  ASSERT_TRUE(has_room_);
  ASSERT_TRUE(reader_->go_on(frames_));
  EXPECT_FALSE(reader_->waits());
  const std::vector<std::byte> rest(70'000, std::byte{8});
  for (std::size_t at = 0; at < rest.size();) {
    const auto room = reader_->room(budget_->scratch());
    const std::size_t n = std::min(room.size(), rest.size() - at);
    std::copy_n(rest.begin(), n, room.begin());
    ASSERT_TRUE(reader_->arrived(n, frames_));
    at += n;
  }
  ASSERT_EQ(frames_.size(), 1u);
  EXPECT_EQ(frames_[0].payload.view(), std::string(30'000, 7) + std::string(70'000, 8));
  EXPECT_TRUE(reader_->has_message());
  EXPECT_FALSE(other->take(2 * kMiB));  // until the handler has the message
  has_room_ = false;
  ASSERT_TRUE(reader_->go_on(frames_));
  EXPECT_TRUE(has_room_);
  EXPECT_FALSE(reader_->waits());
}

TEST_F(FrameReaderTest, BytesBehindALargeMessageWaitUntilTheHandlerHasIt) {
  make(budget_->admit("a").value(), {});
  ASSERT_TRUE(send({0, 100'000, 1, 12, FrameKind::kRequest, 0}, 100'000 - 10));
  std::vector<std::byte> rest(10 + FrameHeader::kBytes);
  std::ranges::copy(FrameHeader{0, 0, 2, 12, FrameKind::kRequest, 0}.encode(), rest.begin() + 10);
  std::ranges::copy(rest, reader_->room(budget_->scratch()).begin());
  ASSERT_TRUE(reader_->arrived(rest.size(), frames_));
  EXPECT_EQ(frames_.size(), 1u);
  EXPECT_TRUE(reader_->waits());
  ASSERT_TRUE(reader_->go_on(frames_));
  ASSERT_EQ(frames_.size(), 2u);
  EXPECT_EQ(frames_[1].id, 2u);
}

TEST_F(FrameReaderTest, ALargeAnswerIsRefusedUnlessACallWaitsForOne) {
  const FrameReader::Limits limits{.frame = {}, .max_message_bytes = 16ull << 30, .counts_calls = true};
  const FrameHeader answer{0, 100'000, 1, 0, FrameKind::kReply, 0};
  const auto message = [&](const FrameHeader& header, std::size_t bytes) {
    const auto sent = send(header, bytes);
    return sent ? std::string() : sent.error().message();
  };
  make(budget_->admit("a").value(), limits);
  EXPECT_NE(message(answer, 0).find("no call waits"), std::string::npos);
  make(budget_->admit("a").value(), limits);
  EXPECT_NE(message(part({kMiB, 0, FrameKind::kReply}, 1000), 0).find("no call waits"), std::string::npos);
  make(budget_->admit("a").value(), limits);
  reader_->expect_answer();
  EXPECT_EQ(message(answer, 100'000), "");
  ASSERT_TRUE(reader_->go_on(frames_));
  EXPECT_NE(message(answer, 0).find("no call waits"), std::string::npos);  // one call, one answer
}

TEST_F(FrameReaderTest, FramesThatAreCutAnywhereArriveWhole) {
  make(budget_->admit("a").value(), {});
  std::vector<std::byte> all;
  for (std::uint32_t i = 0; i < 20; ++i) {
    const auto head = FrameHeader{8, i, i, 12, FrameKind::kRequest, 0}.encode();
    all.insert(all.end(), head.begin(), head.end());
    all.insert(all.end(), 8 + i, static_cast<std::byte>(i));
  }
  for (std::size_t at = 0, n = 1; at < all.size(); at += n, n = n % 37 + 1) {
    const auto room = reader_->room(budget_->scratch());
    n = std::min(n, all.size() - at);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(at), n, room.begin());
    ASSERT_TRUE(reader_->arrived(n, frames_));
  }
  ASSERT_EQ(frames_.size(), 20u);
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(frames_[i].id, i);
    EXPECT_EQ(frames_[i].payload.view(), std::string(i, static_cast<char>(i)));
  }
}

TEST_F(FrameReaderTest, AFrameForWhichThereIsNoMemoryEndsTheConnectionAndNotTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map more than this allows";
#endif
  FrameLimits limits;
  limits.max_payload_bytes = limits.max_body_bytes = 3u << 30;
  for (const FrameHeader header :
       {FrameHeader{0, 3u << 30, 1, 1, FrameKind::kRequest, 0}, FrameHeader{3u << 30, 0, 1, 1, FrameKind::kRequest, 0}}) {
    const auto account = budget_->outgoing();
    account->set_owner(*this);
    FrameReader reader({limits}, *account);
    const auto head = header.encode();
    std::memcpy(reader.room(budget_->scratch()).data(), head.data(), head.size());
    std::vector<Frame> frames;
    const LittleMemory little(1u << 30);
    const auto arrived = reader.arrived(head.size(), frames);
    ASSERT_FALSE(arrived);
    EXPECT_EQ(arrived.error().code(), Code::kResourceExhausted);
    EXPECT_TRUE(frames.empty());
  }
}

}  // namespace
}  // namespace shoal::runtime
