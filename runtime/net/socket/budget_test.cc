#include "runtime/net/socket/budget.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sim/sim_clock.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

class Held final : public Budget::Owner {
 public:
  Held(const Held&) = delete;
  explicit Held(std::unique_ptr<Budget::Account> account) : account(std::move(account)) { this->account->set_owner(*this); }
  void on_room() override { has_room = true; }
  void close_later(Error why) override {
    refused = why.reason();
    account->leave();
  }
  std::uint64_t received_bytes() const override { return received; }
  std::uint64_t taken_bytes() override { return taken; }

  std::unique_ptr<Budget::Account> account;
  std::uint64_t received = 0, taken = 0;
  bool has_room = false;
  std::string refused;
};

class BudgetTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;

  Held of(const std::string& peer) { return Held(budget_->admit(peer).value()); }
  static std::unique_ptr<Held> kept(Result<std::unique_ptr<Budget::Account>> account) {
    return std::make_unique<Held>(std::move(account).value());
  }

  void allow_connections(std::size_t most) {
    options_.max_connections = most;
    budget_ = std::make_shared<Budget>(clock_, options_);
  }

  SimClock clock_;
  Budget::Options options_{.max_connections = 8, .max_arriving_bytes = 64 * kMiB, .max_unsent_bytes = 64 * kMiB};
  std::shared_ptr<Budget> budget_ = std::make_shared<Budget>(clock_, options_);
};

TEST_F(BudgetTest, ConnectionsAreBoundedForAPeerAndForAll) {
  std::vector<std::unique_ptr<Held>> held;
  for (int i = 0; i < 2; ++i) held.push_back(kept(budget_->admit("a")));
  EXPECT_EQ(budget_->admit("a").error().reason(), "TooManyConnections");
  for (const char* peer : {"b", "b", "c", "c", "d", "d"}) held.push_back(kept(budget_->admit(peer)));
  EXPECT_EQ(budget_->admit("e").error().reason(), "TooManyConnections");
  held.pop_back();
  EXPECT_TRUE(budget_->admit("e"));
  const auto ours = budget_->outgoing();  // not counted as an accepted connection
  held[0]->account->leave();
  EXPECT_TRUE(budget_->admit("a"));
}

TEST_F(BudgetTest, APeersMessagesWaitBeyondItsShareAndOthersDoNot) {
  Held first = of("a"), second = of("a"), other = of("b");
  EXPECT_TRUE(first.account->take(10 * kMiB));
  EXPECT_FALSE(second.account->take(10 * kMiB));
  EXPECT_TRUE(other.account->take(10 * kMiB));
  first.account->give_back();
  EXPECT_TRUE(second.has_room);
  EXPECT_TRUE(second.account->take(10 * kMiB));  // has its memory already
  EXPECT_EQ(clock_.num_timers(), 0u);
}

TEST_F(BudgetTest, AMessageBeyondAllBoundsComesAlone) {
  Held large = of("a"), next = of("b");
  EXPECT_TRUE(large.account->take(1000 * kMiB));
  EXPECT_FALSE(next.account->take(kMiB));
  next.account->set_urgent(true);
  EXPECT_TRUE(next.account->take(kMiB));
}

TEST_F(BudgetTest, AStalledMessageIsRefusedOnlyWhileOthersWait) {
  Held stalled = of("a"), slow = of("b"), waits = of("a");
  EXPECT_TRUE(stalled.account->take(16 * kMiB));
  EXPECT_TRUE(slow.account->take(16 * kMiB));
  EXPECT_EQ(clock_.num_timers(), 0u);
  EXPECT_FALSE(waits.account->take(16 * kMiB));
  slow.received += 2 * kMiB;
  clock_.fire_next();
  EXPECT_EQ(stalled.refused, "MessageStalled");
  EXPECT_EQ(slow.refused, "");
  EXPECT_TRUE(waits.has_room);
}

TEST_F(BudgetTest, WhatArrivedWhileNobodyWaitedDoesNotExcuseAStalledMessage) {
  allow_connections(16);
  Held stalled = of("a"), done = of("a"), waits = of("a");
  ASSERT_TRUE(stalled.account->take(10 * kMiB));
  ASSERT_TRUE(done.account->take(5 * kMiB));
  stalled.received += 5 * kMiB;
  done.received += 5 * kMiB;
  done.account->give_back();
  clock_.advance_to(clock_.now() + 3h);
  ASSERT_FALSE(waits.account->take(16 * kMiB));
  clock_.fire_next();
  EXPECT_EQ(stalled.refused, "MessageStalled");
  EXPECT_TRUE(waits.has_room);
}

TEST_F(BudgetTest, AMessageThatGotItsMemoryWhileOthersWaitIsNotJudgedAtOnce) {
  Held first = of("a"), waits = of("a"), fresh = of("b");
  ASSERT_TRUE(first.account->take(16 * kMiB));
  ASSERT_FALSE(waits.account->take(16 * kMiB));
  ASSERT_TRUE(fresh.account->take(kMiB));
  first.received += kMiB;
  clock_.fire_next();
  EXPECT_EQ(fresh.refused, "");
  first.received += kMiB;
  clock_.fire_next();
  EXPECT_EQ(fresh.refused, "MessageStalled");
}

TEST_F(BudgetTest, AMessageThatTricklesIsRefusedOnceOthersHaveWaitedForLong) {
  Held trickles = of("a"), waits = of("b");
  ASSERT_TRUE(trickles.account->take(1000 * kMiB));
  trickles.received += 100 * kMiB;
  clock_.advance_to(clock_.now() + 3h);
  EXPECT_EQ(clock_.num_timers(), 0u);  // no message waits
  const TimePoint began = clock_.now();
  ASSERT_FALSE(waits.account->take(kMiB));
  while (trickles.refused.empty() && clock_.num_timers() > 0) {
    trickles.received += 70 << 10;
    clock_.fire_next();
  }
  EXPECT_EQ(trickles.refused, "MessageTooSlow");
  EXPECT_GE(clock_.now() - began, options_.waiting_patience);
  EXPECT_LE(clock_.now() - began, options_.waiting_patience + options_.patience);
  EXPECT_TRUE(waits.has_room);
}

TEST_F(BudgetTest, ASlowMessageForWhichNobodyWaitsIsKept) {
  Held slow = of("a"), holds = of("b"), waits = of("b");
  ASSERT_TRUE(slow.account->take(16 * kMiB));
  ASSERT_TRUE(holds.account->take(16 * kMiB));
  ASSERT_FALSE(waits.account->take(16 * kMiB));  // waits for the memory that `holds`, of the same peer, has
  while (holds.refused.empty() && clock_.num_timers() > 0) {
    for (Held* held : {&slow, &holds}) held->received += 70 << 10;
    clock_.fire_next();
  }
  EXPECT_EQ(holds.refused, "MessageTooSlow");
  EXPECT_EQ(slow.refused, "");
}

TEST_F(BudgetTest, MessagesThatWereFastAreRefusedOnceTheirTimeIsOver) {
  allow_connections(16);
  Held first = of("a"), second = of("a"), waits = of("a");
  const TimePoint began = clock_.now();
  for (Held* held : {&first, &second}) ASSERT_TRUE(held->account->take(8 * kMiB));
  ASSERT_FALSE(waits.account->take(16 * kMiB));
  for (Held* held : {&first, &second}) held->received += 7 * kMiB;
  while (first.refused.empty() && clock_.num_timers() > 0) {
    for (Held* held : {&first, &second}) held->received += 35 << 10;
    clock_.fire_next();
  }
  EXPECT_EQ(first.refused, "MessageTooSlow");
  EXPECT_EQ(second.refused, "MessageTooSlow");  // at the same time as `first`
  EXPECT_GE(clock_.now() - began, options_.waiting_patience + options_.finishing_time);
  EXPECT_LE(clock_.now() - began, options_.waiting_patience + options_.finishing_time + 2 * options_.patience);
  EXPECT_TRUE(waits.has_room);
}

// Four peers, each with its whole share, get equal parts of a link of `per_second` bytes. Others wait for all of them.
class SlowLinkTest : public BudgetTest {
 protected:
  void run(std::uint64_t per_second) {
    std::vector<std::unique_ptr<Held>> held;
    for (const char* peer : {"a", "b", "c", "d"}) {
      held.push_back(kept(budget_->admit(peer)));
      ASSERT_TRUE(held.back()->account->take(16 * kMiB));
    }
    ASSERT_FALSE(waits_.account->take(16 * kMiB));
    while (clock_.num_timers() > 0) {
      for (const auto& h : held) h->received += per_second;  // in 4 s
      clock_.fire_next();
      for (const auto& h : held) {
        if (h->received >= 16 * kMiB) h->account->give_back();
      }
    }
    for (const auto& h : held) refused_ += h->refused;
    EXPECT_TRUE(waits_.has_room);
  }
  Held waits_ = of("e");
  std::string refused_;
};

TEST_F(SlowLinkTest, PeersThatFinishInTimeAreKept) {
  run(800'000);
  EXPECT_EQ(refused_, "");
}

TEST_F(SlowLinkTest, OnlyAsManyAreRefusedAsTheOthersNeed) {
  run(400'000);
  EXPECT_EQ(refused_, "MessageTooSlow");
}

TEST_F(BudgetTest, ALargeMessageIsNotOvertakenBySmallOnesThatTakeItsRoom) {
  std::vector<std::unique_ptr<Held>> held;
  for (const char* peer : {"a", "b", "c", "d"}) {
    held.push_back(kept(budget_->admit(peer)));
    ASSERT_TRUE(held.back()->account->take(15 * kMiB));
  }
  Held large = of("e"), small = of("f");
  EXPECT_FALSE(large.account->take(16 * kMiB));
  EXPECT_FALSE(small.account->take(kMiB));  // there is room for this one, but it comes after `large`
  held[0]->account->give_back();
  EXPECT_TRUE(large.has_room);
  EXPECT_TRUE(small.has_room);
}

TEST_F(BudgetTest, AMessageBeyondItsPeersShareStopsLaterOnesOfThatPeerOnly) {
  Held first = of("a"), large = of("a"), small = Held(budget_->outgoing()), other = of("b");
  ASSERT_TRUE(first.account->take(10 * kMiB));
  EXPECT_FALSE(large.account->take(16 * kMiB));
  EXPECT_TRUE(small.account->take(kMiB));
  EXPECT_TRUE(other.account->take(kMiB));
  first.account->leave();
  EXPECT_TRUE(large.has_room);
}

TEST_F(BudgetTest, AWaitingMessageThatGoesMakesWayForThoseBehindIt) {
  Held holds = of("a"), others = of("b");
  ASSERT_TRUE(holds.account->take(60 * kMiB));
  Held large = of("c"), small = of("d");
  EXPECT_FALSE(large.account->take(16 * kMiB));
  EXPECT_FALSE(small.account->take(kMiB));
  large.account->leave();
  EXPECT_TRUE(small.has_room);
}

// Each of many connections gets little of a slow link.
TEST_F(BudgetTest, MessagesThatShareASlowLinkAreNotRefused) {
  allow_connections(16);
  std::vector<std::unique_ptr<Held>> held;
  for (const char* peer : {"a", "a", "b", "b"}) {
    held.push_back(kept(budget_->admit(peer)));
    ASSERT_TRUE(held.back()->account->take(8 * kMiB));
  }
  Held waits = of("a");
  ASSERT_FALSE(waits.account->take(8 * kMiB));
  for (int check = 0; check < 6; ++check) {                           // less than the waiting patience
    held[static_cast<std::size_t>(check % 2)]->received += 40 << 10;  // a's, by turns
    held[2]->received += 40 << 10;                                    // b's: the other one gets nothing for long
    clock_.fire_next();
  }
  for (const auto& h : held) EXPECT_EQ(h->refused, "");
  held[2]->received += 40 << 10;
  clock_.fire_next();
  EXPECT_EQ(held[0]->refused + held[1]->refused, "MessageStalledMessageStalled");
  EXPECT_TRUE(waits.has_room);
  EXPECT_EQ(held[2]->refused + held[3]->refused, "");
}

TEST_F(BudgetTest, APausedConnectionGetsNoMemory) {
  allow_connections(16);
  Held holds = of("a"), paused = of("a"), other = of("a");
  ASSERT_TRUE(holds.account->take(16 * kMiB));
  EXPECT_FALSE(paused.account->take(10 * kMiB));
  paused.account->set_paused(true);
  EXPECT_FALSE(other.account->take(10 * kMiB));
  holds.account->give_back();
  EXPECT_FALSE(paused.has_room);
  EXPECT_TRUE(other.has_room);
  other.account->give_back();
  EXPECT_FALSE(paused.account->take(10 * kMiB));
  paused.account->set_paused(false);
  EXPECT_TRUE(paused.account->take(10 * kMiB));
}

TEST_F(BudgetTest, AConnectionThatPausesBeforeItUsesItsMemoryGivesItBack) {
  Held holds = of("a"), paused = of("a");
  ASSERT_TRUE(holds.account->take(16 * kMiB));
  EXPECT_FALSE(paused.account->take(16 * kMiB));
  holds.account->give_back();
  EXPECT_TRUE(paused.has_room);
  paused.account->set_paused(true);
  EXPECT_TRUE(holds.account->take(16 * kMiB));
}

TEST_F(BudgetTest, ThePeerWithTheMostUnreadAnswersIsRefused) {
  Held first = of("a"), second = of("b"), third = of("c");
  const std::uint64_t alone = first.account->allowance();
  first.account->set_unsent(40 * kMiB);
  EXPECT_LT(second.account->allowance(), alone);
  second.account->set_unsent(20 * kMiB);
  third.account->set_unsent(5 * kMiB);
  EXPECT_EQ(first.refused, "AnswersNotRead");
  EXPECT_EQ(second.refused + third.refused, "");
  third.account->set_unsent(0);
  EXPECT_EQ(third.account->allowance(), (64 - 20) * kMiB / 8);
}

TEST_F(BudgetTest, ThePeerWithTheMostUnreadAnswersIsRefusedAlsoIfItHasManyConnections) {
  Held first = of("a"), second = of("a"), other = of("b"), last = of("c");
  first.account->set_unsent(14 * kMiB);
  second.account->set_unsent(16 * kMiB);
  other.account->set_unsent(20 * kMiB);  // the largest connection, but peer a has more in all
  last.account->set_unsent(15 * kMiB);
  EXPECT_EQ(second.refused, "AnswersNotRead");
  EXPECT_EQ(first.refused + other.refused + last.refused, "");
}

TEST_F(BudgetTest, APeerThatReadsIsRefusedAfterThoseThatDoNot) {
  Held reads = of("a"), sleeps = of("a"), other = of("b"), little = of("c"), last = of("d");
  little.account->set_unsent(12 * kMiB);
  sleeps.account->set_unsent(5 * kMiB);
  reads.account->set_unsent(20 * kMiB);
  other.account->set_unsent(17 * kMiB);
  reads.taken = 1000;
  last.account->set_unsent(11 * kMiB);
  EXPECT_EQ(sleeps.refused, "AnswersNotRead");
  EXPECT_EQ(reads.refused + other.refused + little.refused + last.refused, "");
  last.account->set_unsent(16 * kMiB);
  EXPECT_EQ(other.refused, "AnswersNotRead");
  EXPECT_EQ(reads.refused + little.refused + last.refused, "");
  last.taken = 1000;
  last.account->set_unsent(33 * kMiB);
  EXPECT_EQ(last.refused, "AnswersNotRead");
  EXPECT_EQ(reads.refused + little.refused, "");  // a peer within its share may stand still
}

TEST_F(BudgetTest, APeersAnswersStayWithinItsShare) {
  Held first = of("a"), second = of("a"), other = of("b");
  first.account->set_unsent(12 * kMiB);
  EXPECT_EQ(second.account->allowance(), (64 / 4 - 12) * kMiB / 2);
  EXPECT_EQ(other.account->allowance(), (64 - 12) * kMiB / 8);
  first.account->leave();
  EXPECT_EQ(second.account->allowance(), 64 * kMiB / 8);
}

TEST_F(BudgetTest, OneAnswerThatWaitsAloneMayBeLarger) {
  Held large = of("a"), other = of("b");
  large.account->set_unsent(100 * kMiB);
  large.account->set_unsent(90 * kMiB);
  EXPECT_EQ(large.refused, "");
  other.account->set_unsent(kMiB);
  EXPECT_EQ(large.refused, "AnswersNotRead");
  EXPECT_EQ(other.refused, "");
}

TEST_F(BudgetTest, WhileAnswersAreManyEachPeerHasToRead) {
  Held sleeps = of("a"), reads = of("b"), late = of("c");
  sleeps.account->set_unsent(20 * kMiB);
  EXPECT_EQ(clock_.num_timers(), 0u);
  reads.account->set_unsent(20 * kMiB);
  late.account->set_unsent(kMiB);
  ASSERT_EQ(clock_.num_timers(), 3u);
  reads.taken += 1000;
  late.taken += 1000;
  for (int i = 0; i < 3; ++i) clock_.fire_next();
  EXPECT_EQ(sleeps.refused, "AnswersNotRead");
  EXPECT_EQ(reads.refused + late.refused, "");
  while (clock_.num_timers() > 0) clock_.fire_next();  // the answers are few now
  EXPECT_EQ(reads.refused + late.refused, "");
}

TEST_F(BudgetTest, OtherConnectionsOfAPeerThatReadsNothingHaveLittleTime) {
  Held first = of("a"), second = of("a"), other = of("b");
  for (Held* held : {&first, &second, &other}) {
    held->account->set_unsent(kMiB);
    held->account->set_paused(true);
  }
  const TimePoint began = clock_.now();
  clock_.fire_next();
  EXPECT_EQ(first.refused, "AnswersNotRead");
  EXPECT_EQ(clock_.now() - began, options_.reading_patience);
  first.account.reset();
  Held later = of("a");
  later.account->set_unsent(kMiB);
  later.account->set_paused(true);
  other.account->set_paused(false);
  for (int i = 0; i < 2; ++i) clock_.fire_next();
  EXPECT_EQ(second.refused, "AnswersNotRead");
  EXPECT_EQ(later.refused, "AnswersNotRead");
  EXPECT_EQ(clock_.now() - began, options_.reading_patience + options_.patience);
  EXPECT_EQ(other.refused, "");
}

TEST_F(BudgetTest, APeerThatReadsAgainHasAllTheTimeAgain) {
  Held first = of("a"), second = of("a");
  first.account->set_unsent(kMiB);
  first.account->set_paused(true);
  clock_.fire_next();
  ASSERT_EQ(first.refused, "AnswersNotRead");
  second.account->set_unsent(kMiB);
  second.account->set_paused(true);
  second.account->set_paused(false);  // its peer has read
  second.account->set_paused(true);
  const TimePoint began = clock_.now();
  clock_.fire_next();
  EXPECT_EQ(second.refused, "AnswersNotRead");
  EXPECT_EQ(clock_.now() - began, options_.reading_patience);
}

TEST_F(BudgetTest, APeerMayReadNothingWhileItsOwnMessagesWait) {
  EXPECT_GT(options_.reading_patience, options_.waiting_patience + options_.finishing_time + 2 * options_.patience);
}

TEST_F(BudgetTest, AMessageThatAPauseKeepsHoldsItsMemoryForABoundedTime) {
  Held kept = of("a"), waits = of("a");
  ASSERT_TRUE(kept.account->take(16 * kMiB));
  kept.received += 16 * kMiB;
  kept.account->set_paused(true);
  EXPECT_TRUE(kept.account->complete());
  const TimePoint began = clock_.now();
  ASSERT_FALSE(waits.account->take(16 * kMiB));
  while (kept.refused.empty()) {
    kept.taken += 1;
    clock_.fire_next();
  }
  EXPECT_EQ(kept.refused, "AnswersNotRead");
  EXPECT_GE(clock_.now() - began, options_.waiting_patience + options_.finishing_time);
  EXPECT_LE(clock_.now() - began, options_.waiting_patience + options_.finishing_time + 2 * options_.patience);
  EXPECT_TRUE(waits.has_room);
}

TEST_F(BudgetTest, APeerThatReadsNoneOfItsAnswersIsRefusedWithinThePatience) {
  Held reads = of("a"), sleeps = of("b");
  for (Held* held : {&reads, &sleeps}) {
    held->account->set_unsent(10 * kMiB);
    held->account->set_paused(true);
  }
  for (int period = 0; period < 3; ++period) {
    reads.taken += 1000;  // they are part of one large answer
    clock_.fire_next();
    if (clock_.num_timers() > 1) clock_.fire_next();
  }
  EXPECT_EQ(sleeps.refused, "AnswersNotRead");
  EXPECT_EQ(reads.refused, "");
  reads.account->set_paused(false);
  EXPECT_EQ(clock_.num_timers(), 0u);
}

TEST_F(BudgetTest, ALittleIsAlwaysAllowed) {
  Held full = of("a"), other = of("b");
  full.account->set_unsent(64 * kMiB);
  EXPECT_EQ(other.account->allowance(), Budget::kSmallBytes);
}

TEST_F(BudgetTest, AConnectionThatWaitsMayEnd) {
  Held holds = of("a");
  ASSERT_TRUE(holds.account->take(16 * kMiB));
  {
    Held waits = of("a");
    ASSERT_FALSE(waits.account->take(16 * kMiB));
  }
  EXPECT_EQ(clock_.num_timers(), 0u);
  holds.account->give_back();
}

}  // namespace
}  // namespace shoal::runtime
