#include "storage/outbox.h"

#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "storage/reference_table.h"

namespace shoal::storage {
namespace outbox_test {

constexpr NodeId kThis{1}, kOther{2};

TEST(Outbox, SendsOneMessageAtATime) {
  Outbox<int> box(2);
  EXPECT_EQ(box.next(), nullptr);
  for (const int i : {1, 2, 3}) box.add(i);
  const auto* const first = box.next();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->items, (std::vector{1, 2}));
  EXPECT_EQ(first->number, 1u);
  EXPECT_EQ(box.next(), nullptr);
  box.acknowledged();
  const auto* const second = box.next();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->items, std::vector{3});
  EXPECT_EQ(second->number, 2u);
  box.acknowledged();
  EXPECT_EQ(box.next(), nullptr);
  EXPECT_EQ(box.size(), 0u);
}

TEST(Outbox, RepeatsAnUnacknowledgedMessage) {
  Outbox<int> box(8);
  box.add(1);
  ASSERT_NE(box.next(), nullptr);
  box.add(2);
  box.lost();
  const auto* const again = box.next();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->number, 1u);
  EXPECT_EQ(again->items, std::vector{1});
}

TEST(Inbox, TakesEachMessageOnceOfEachNode) {
  Inbox inbox;
  EXPECT_TRUE(inbox.take(kThis, 1));
  EXPECT_FALSE(inbox.take(kThis, 1));
  EXPECT_TRUE(inbox.take(kOther, 1));
  EXPECT_TRUE(inbox.take(kThis, 2));
  EXPECT_FALSE(inbox.take(kThis, 1));
  inbox.forget(kThis);
  EXPECT_TRUE(inbox.take(kThis, 1));
}

// Processes of three nodes pass references on and report counts to their node, which forwards them to the home over breaking connections.
// Processes die, and their nodes report that in order. The object is freed exactly when no reference is held or under way.
TEST(CountsOverNodes, FreeUnreferencedObjectsOnly) {
  constexpr std::size_t kNodes = 3, kProcesses = 6;
  struct Said {
    WorkerId holder;
    std::int64_t change = 0;  // 0: the holder is gone
  };
  struct Process {
    std::int64_t held = 0, counted = 0;
    bool dead = false;
  };
  const auto id = [](std::size_t p) { return WorkerId{p + 1}; };
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    ReferenceTable home;
    Inbox inbox;
    const ReferenceTable::Object object{JobId{1}, ObjectId{1}};
    std::array<Process, kProcesses> all;
    std::vector<Outbox<Said>> boxes(kNodes, Outbox<Said>(3));
    bool freed = false;
    const auto tell = [&](std::size_t p, Said said) { boxes[p % kNodes].add(said); };
    const auto deliver = [&](std::size_t n, bool arrives, bool acknowledged) {
      const auto* const parcel = boxes[n].next();
      if (parcel == nullptr) return;
      if (arrives && inbox.take(NodeId{n + 1}, parcel->number)) {
        for (const Said& said : parcel->items) {
          const auto gone = said.change == 0 ? home.worker_gone(said.holder) : home.count(object, said.holder, said.change);
          freed |= !gone.empty();
        }
      }
      acknowledged ? boxes[n].acknowledged() : boxes[n].lost();
    };
    all[0].held = all[0].counted = 1;
    tell(0, {id(0), 1});
    for (int step = 0; step < 80; ++step) {
      const std::size_t p = random() % kProcesses, q = random() % kProcesses;
      Process& one = all[p];
      switch (random() % 5) {
        case 0:  // passes a reference on, which arrives at once
          if (one.held == 0 || all[q].dead) break;
          tell(p, {id(q), 1});
          ++all[q].held;
          ++all[q].counted;
          break;
        case 1:
          if (one.held == 0 || --one.held > 0) break;
          tell(p, {id(p), -one.counted});
          one.counted = 0;
          break;
        case 2:
          if (p == 0 || one.dead || random() % 4 != 0) break;
          one = {0, 0, true};
          // The home asks for the holder's end after its first count, so counts may still arrive after the end.
          tell(p, {id(p), 0});
          break;
        default: {
          const bool arrives = random() % 3 != 0;
          deliver(random() % kNodes, arrives, arrives && random() % 3 != 0);
        }
      }
      const bool somebody = std::any_of(all.begin(), all.end(), [](const Process& x) { return x.held > 0; });
      ASSERT_FALSE(freed && somebody) << "seed " << seed << " step " << step;
    }
    for (std::size_t n = 0; n < kNodes; ++n) {
      while (boxes[n].size() > 0) deliver(n, true, true);
    }
    for (std::size_t p = 0; p < kProcesses; ++p) freed |= !home.worker_gone(id(p)).empty();
    ASSERT_TRUE(freed) << "seed " << seed;
    ASSERT_EQ(home.num_entries(), 0u) << "seed " << seed;
  }
}

}  // namespace outbox_test
}  // namespace shoal::storage
