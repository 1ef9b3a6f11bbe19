#include "scheduler/node/peers/changes.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "storage/reference_table.h"

namespace shoal::scheduler {
namespace {

using actors::ObjectKey;
using storage::ReferenceTable;
using Change = actors::CountObjects::Change;
using Kind = Change::Kind;

constexpr JobId kJob{1};
constexpr NodeId kHome{7}, kHere{8};

Change change(Kind kind, std::uint64_t object, std::uint64_t holder, std::int64_t by = 0) {
  return {{kJob, ObjectId{object}, kHome}, WorkerId{holder}, by, kHere, kind};
}
Change count(std::uint64_t object, std::uint64_t holder, std::int64_t by) { return change(Kind::kCount, object, holder, by); }

std::vector<std::pair<Kind, std::int64_t>> brief(const std::deque<Change>& changes) {
  std::vector<std::pair<Kind, std::int64_t>> out;
  for (const auto& c : changes) out.emplace_back(c.kind, c.by);
  return out;
}

TEST(Merged, AddedAndRemovedReferencesCancelOut) {
  std::deque<Change> waiting;
  for (int i = 0; i < 1000; ++i) {
    waiting.push_back(count(1, 10, 1));
    waiting.push_back(count(1, 10, -1));
  }
  EXPECT_TRUE(merged(waiting).empty());
}

TEST(Merged, AdditionsPrecedeAllRemovals) {
  const auto out = merged({count(1, 10, -1), change(Kind::kGone, 0, 12), count(1, 11, 1), change(Kind::kCountContents, 1, 11),
                           change(Kind::kWatch, 0, 13), count(1, 11, 1), change(Kind::kWatch, 0, 13), change(Kind::kGone, 0, 12)});
  EXPECT_EQ(brief(out), (std::vector<std::pair<Kind, std::int64_t>>{
                            {Kind::kCount, 2}, {Kind::kCountContents, 0}, {Kind::kWatch, 0}, {Kind::kCount, -1}, {Kind::kGone, 0}}));
}

// The counts of references at a home. Object n contains object 100 + n.
struct Home {
  static constexpr std::uint64_t kObjects = 3;
  ReferenceTable table;
  std::set<std::uint64_t> freed;
  Home() {
    for (std::uint64_t o = 1; o <= kObjects; ++o) {
      apply(count(o, 10, 1));
      table.contain({kJob, ObjectId{o}}, {{kJob, ObjectId{100 + o}}});
    }
  }
  void free(const ReferenceTable::Freed& objects) {
    for (const auto& o : objects) freed.insert(o.id.value);
  }
  void apply(const Change& c) {
    const ReferenceTable::Object object{kJob, c.object.id};
    if (c.kind == Kind::kCount) free(table.count(object, c.holder, c.by));
    if (c.kind == Kind::kGone) free(table.worker_gone(c.holder));
    if (c.kind != Kind::kCountContents) return;
    for (const auto& inner : table.contained(object)) free(table.count(inner, c.holder, 1));
  }
};

// Processes on a node that cannot reach the home pass references on, read objects, drop references, and die. The merged changes free the
// same objects as the separate changes, and no others.
TEST(Merged, FreesTheSameObjects) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 3000; ++run) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> has;  // counts of references, by (object, process)
    std::set<std::uint64_t> dead;
    std::deque<Change> said, in_parts;
    for (std::uint64_t o = 1; o <= Home::kObjects; ++o) has[{o, 10}] = 1;
    for (int step = 0; step < 60; ++step) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
      for (const auto& [key, n] : has) {
        if (n > 0) held.push_back(key);
      }
      if (held.empty()) break;
      const auto [object, process] = held[random() % held.size()];
      const std::uint64_t other = 10 + random() % 5;
      const auto say = [&](const Change& c) {
        said.push_back(c);
        in_parts.push_back(c);
      };
      switch (random() % 8) {
        case 0:
        case 1:
          if (dead.contains(other)) break;
          say(count(object, other, 1));
          ++has[{object, other}];
          break;
        case 2:
        case 3:
        case 4:
          say(count(object, process, -std::exchange(has[{object, process}], 0)));
          break;
        case 5:
        case 6:
          if (object > 100) break;
          say(change(Kind::kCountContents, object, process));
          ++has[{object + 100, process}];
          break;
        default:
          if (random() % 8 != 0) break;
          dead.insert(process);
          say(change(Kind::kGone, 0, process));
          for (auto& [key, n] : has) {
            if (key.second == process) n = 0;
          }
      }
      if (random() % 10 == 0) in_parts = merged(in_parts);
    }
    Home plain, once, again;
    for (const auto& c : said) plain.apply(c);
    for (const auto& c : merged(said)) once.apply(c);
    for (const auto& c : merged(in_parts)) again.apply(c);
    ASSERT_EQ(plain.freed, once.freed) << run;
    ASSERT_EQ(plain.freed, again.freed) << run;
    for (const auto& [key, n] : has) {
      ASSERT_FALSE(n > 0 && once.freed.contains(key.first)) << run;
    }
  }
}

}  // namespace
}  // namespace shoal::scheduler
