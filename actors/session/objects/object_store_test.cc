#include "actors/session/objects/object_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/value/value.h"

namespace shoal::actors {
namespace {

constexpr std::size_t kMiB = 1 << 20;

class ObjectStoreTest : public testing::Test {
 protected:
  // By default, `patience` is long enough for slow peers. Tests in which peers free nothing make it short.
  explicit ObjectStoreTest(std::chrono::steady_clock::duration patience = std::chrono::minutes(2)) : patience_(patience) {
    runtime::UsageBoard usage_board(node_.data());
    usage_board.set_limit(10 * kMiB);
    usage_board.set_members(2);
    join(here_, 0);
    join(there_, 1);
  }

  void join(ObjectStore& store, std::size_t member) {
    ObjectStore::Place place;
    place.membership_page = runtime::map(memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
    place.member = member;
    place.folder = folder_;
    ObjectStore& other = member == 0 ? there_ : here_;
    place.request_room = [&other](std::uint64_t bytes) { other.wanted(bytes); };
    place.moved = [this](const ObjectKey& object, Result<Fd> file) { moved_.emplace_back(object, std::move(file)); };
    place.patience = patience_;
    store.join(std::move(place));
  }

  Result<Value> make(char with, ObjectStore& store, std::size_t bytes = 3 * kMiB) {
    const std::string text(bytes, with);
    return Value::make({std::as_bytes(std::span(text))}, Value::Kind::kResult, &store);
  }
  static char look(const Value& value) {
    const auto here = value.pin().value();
    const auto last = here.pieces[0].back();
    EXPECT_EQ(here.pieces[0].front(), last);
    return static_cast<char>(last);
  }
  runtime::UsageBoard::Usage total() { return runtime::UsageBoard(node_.data()).total(); }

  const std::chrono::steady_clock::duration patience_;
  const std::string folder_ = [] {
    std::string name = testing::TempDir() + "/object-store-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
  const Fd memory_ = runtime::make_memory("board", runtime::UsageBoard::kBytes).value();
  const runtime::Mapping node_ = runtime::map(memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
  std::vector<std::pair<ObjectKey, Result<Fd>>> moved_;
  ObjectStore here_, there_;
};

class ObjectStoreFullTest : public ObjectStoreTest {
 protected:
  ObjectStoreFullTest() : ObjectStoreTest(std::chrono::milliseconds(200)) {}
};

TEST_F(ObjectStoreTest, MovesTheLeastRecentlyUsedIntoFilesAndReadsThemThere) {
  std::vector<Value> values;
  for (char c = 'a'; c < 'g'; ++c) {
    values.push_back(make(c, here_).value());
    EXPECT_LE(total().kept, 10 * kMiB);
  }
  EXPECT_TRUE(values[0].memory()->spilled());
  EXPECT_FALSE(values[5].memory()->spilled());
  for (char c = 'a'; c < 'g'; ++c) EXPECT_EQ(look(values[static_cast<std::size_t>(c - 'a')]), c);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));  // spilled files have no names
  EXPECT_GE(total().spilled, 9 * kMiB);
  values.clear();
  EXPECT_EQ(total().spilled, 0u);
}

TEST_F(ObjectStoreTest, KeepsObjectsThatAreRead) {
  const Value looked_at = make('a', here_).value();
  const auto here = looked_at.pin().value();
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(make('b', here_).value());
  EXPECT_FALSE(looked_at.memory()->spilled());
  EXPECT_EQ(here.pieces[0].back(), std::byte{'a'});
}

TEST_F(ObjectStoreTest, AnObjectInAFileIsPassedOn) {
  const Value value = make('a', here_).value();
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(make('b', here_).value());
  ASSERT_TRUE(value.memory()->spilled());
  const Value there = Value::from_memory(value.own_memory().value()->descriptor().value()).value();
  EXPECT_EQ(look(there), 'a');
}

TEST_F(ObjectStoreTest, TheNodeIsNotifiedOfObjectsThatItKeeps) {
  const Value value = make('a', here_).value();
  value.memory()->published_as({JobId{3}, ObjectId{7}, NodeId{1}});
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(make('b', here_).value());
  ASSERT_EQ(moved_.size(), 1u);
  EXPECT_EQ(moved_[0].first, (ObjectKey{JobId{3}, ObjectId{7}, NodeId{1}}));
  EXPECT_EQ(look(Value::from_memory(*std::move(moved_[0].second)).value()), 'a');
}

TEST_F(ObjectStoreTest, AsksOthersForRoom) {
  std::vector<Value> theirs, ours;
  for (int k = 0; k < 3; ++k) theirs.push_back(make('t', there_).value());
  for (int k = 0; k < 3; ++k) ours.push_back(make('o', here_).value());
  EXPECT_LE(total().kept, 10 * kMiB);
  for (const Value& v : theirs) EXPECT_EQ(look(v), 't');
  for (const Value& v : ours) EXPECT_EQ(look(v), 'o');
}

TEST_F(ObjectStoreFullTest, RefusesAnObjectWithoutRoomAndNamesTheNumbers) {
  EXPECT_EQ(make('a', here_, 11 * kMiB).error().reason(), "ObjectStoreFull");
  std::vector<Value> values;
  std::vector<Value::Pinned> looked_at;
  for (int k = 0; k < 3; ++k) {
    values.push_back(make('a', k == 0 ? there_ : here_).value());
    looked_at.push_back(values.back().pin().value());
  }
  const auto refused = make('b', here_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "ObjectStoreFull");
  EXPECT_NE(refused.error().message().find(std::to_string(10 * kMiB)), std::string::npos);
  looked_at.clear();
  EXPECT_TRUE(make('b', here_));
}

TEST_F(ObjectStoreFullTest, ReportsWhyAFileCannotBeMade) {
  std::filesystem::remove(folder_);
  std::vector<Value> values;
  for (int k = 0; k < 3; ++k) values.push_back(make('a', here_).value());
  const auto refused = make('b', here_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find(folder_), std::string::npos);
}

TEST_F(ObjectStoreTest, ACopyToWriteToIsALookToo) {
  const Value value = make('a', here_).value();
  const Value mine = value.for_user().value();
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(make('b', here_).value());
  EXPECT_FALSE(value.memory()->spilled());
  const_cast<std::byte&>(mine.pieces()[0][0]) = std::byte{'!'};
  EXPECT_EQ(look(value), 'a');
}

TEST_F(ObjectStoreTest, TheMovedObjectHasNoWritesToItsView) {
  const Value value = make('a', here_).value();
  const_cast<std::byte&>(value.pin().value().pieces[0][0]) = std::byte{'!'};
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(make('b', here_).value());
  ASSERT_TRUE(value.memory()->spilled());
  EXPECT_EQ(look(value), 'a');
}

TEST_F(ObjectStoreTest, AProcessAtItsOwnBoundMovesObjectsDespiteFreeRoom) {
  ObjectStore few({.max_segments = 4});
  ObjectStore::Place place;
  place.membership_page = runtime::map(memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
  place.folder = folder_;
  place.request_room = [](std::uint64_t) {};
  place.moved = [](const ObjectKey&, Result<Fd>) {};
  few.join(std::move(place));
  std::vector<Value> values;
  for (char c = 'a'; c < 'k'; ++c) values.push_back(make(c, few, kMiB / 4).value());
  std::size_t in_files = 0;
  for (char c = 'a'; c < 'k'; ++c) {
    const Value& value = values[static_cast<std::size_t>(c - 'a')];
    EXPECT_EQ(look(value), c);
    in_files += value.memory()->spilled();
  }
  EXPECT_GE(in_files, 6u);
  EXPECT_GE(total().kept, (10 - in_files) * kMiB / 4);  // values that are not in files are counted
  std::vector<Value::Pinned> looked_at;
  for (const Value& value : values) looked_at.push_back(value.pin().value());
  for (int k = 0; k < 6; ++k) {
    values.push_back(make('z', few, kMiB / 4).value());  // possible even when no value can be spilled
    looked_at.push_back(values.back().pin().value());
  }
}

TEST_F(ObjectStoreTest, AnObjectFilledByTheLoopDoesNotWaitAndCountsWhileItIsReferenced) {
  const std::string text(3 * kMiB, 'l');
  const auto fill = [&] { return Value::make({std::as_bytes(std::span(text))}, Value::Kind::kResult, &here_.at_once()).value(); };
  std::vector<Value> values;
  for (int k = 0; k < 5; ++k) values.push_back(fill());
  EXPECT_GE(total().kept, 15 * kMiB);  // more than the node's limit
  std::optional<Fd> elsewhere = values[4].memory()->descriptor().value();
  values.pop_back();
  values.push_back(make('b', here_).value());  // moves the others into files
  for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(look(values[k]), 'l');
  values.clear();
  EXPECT_EQ(total().spilled, 0u);
  here_.wanted(1);
  while (total().kept >= 4 * kMiB) std::this_thread::yield();
  EXPECT_GE(total().kept, 3 * kMiB);  // another process holds this value
  elsewhere.reset();
  here_.wanted(1);
  while (total().kept != 0) std::this_thread::yield();
}

class ObjectStoreSharedTest : public ObjectStoreTest {
 protected:
  // Makes one value more than fits, in a process whose other values are all held by other processes, too.
  Result<Value> one_more(std::function<void(ObjectStore::Place&)> change) {
    ObjectStore::Place place;
    place.membership_page = runtime::map(memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
    place.folder = folder_;
    place.request_room = [](std::uint64_t) {};
    place.moved = [](const ObjectKey&, Result<Fd>) {};
    place.patience = std::chrono::minutes(2);
    change(place);
    store_.join(std::move(place));
    for (int k = 0; k < 8; ++k) values_.push_back(make('a', store_, kMiB).value());
    for (const Value& v : values_) elsewhere_.push_back(v.memory()->descriptor().value());
    return make('b', store_, kMiB * 3 / 2);
  }
  auto in_files() const {
    return std::count_if(values_.begin(), values_.end(), [](const Value& v) { return v.memory()->spilled(); });
  }
  ObjectStore store_;
  std::vector<Value> values_;
  std::vector<Fd> elsewhere_;  // descriptors of values_ in other processes
};

TEST_F(ObjectStoreSharedTest, OtherProcessesAreAskedBeforeAllSmallObjectsAreMoved) {
  std::ptrdiff_t before = -1;
  const auto out = one_more([&](ObjectStore::Place& place) {
    place.request_room = [&](std::uint64_t) {
      if (before < 0) before = in_files();
      elsewhere_.clear();
    };
  });
  EXPECT_TRUE(out);
  EXPECT_GE(before, 1);
  EXPECT_LE(before, 4);
}

TEST_F(ObjectStoreSharedTest, MovingValuesCanBeInterrupted) {
  int asked = 0;
  const auto out = one_more([&](ObjectStore::Place& place) { place.interrupted = [&asked] { return ++asked == 2; }; });
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().reason(), "Interrupted");
  // Once `interrupted` has returned true, it is not polled again.
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(in_files(), 0);
}

TEST_F(ObjectStoreSharedTest, APutInASignalHandlerDoesNotDeadlock) {
  int asked = 0;
  std::string reason;
  const auto out = one_more([&](ObjectStore::Place& place) {
    place.patience = std::chrono::milliseconds(1);
    place.interrupted = [&] {
      if (++asked != 2) return false;  // while the first value is moved into a file
      reason = make('c', store_, 2 * kMiB).error().reason();
      return true;
    };
  });
  EXPECT_EQ(reason, "ObjectStoreFull");
  EXPECT_EQ(out.error().reason(), "Interrupted");
}

class ObjectStoreWaitTest : public ObjectStoreTest {
 protected:
  // Makes a value in a third process, on a node whose memory is full and in use.
  Result<Value> waits(std::function<void(ObjectStore::Place&)> change) {
    std::vector<Value> values;
    std::vector<Value::Pinned> looked_at;
    for (int k = 0; k < 3; ++k) {
      values.push_back(make('a', here_).value());
      looked_at.push_back(values.back().pin().value());
    }
    runtime::UsageBoard(node_.data()).set_members(3);
    ObjectStore third;
    ObjectStore::Place place;
    place.membership_page = runtime::map(memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
    place.member = 2;
    place.folder = folder_;
    place.request_room = [](std::uint64_t) {};
    place.moved = [](const ObjectKey&, Result<Fd>) {};
    place.patience = std::chrono::hours(1);
    change(place);
    third.join(std::move(place));
    return make('b', third);
  }
};

TEST_F(ObjectStoreWaitTest, EndsWhenItIsInterrupted) {
  int asked = 0;
  const auto out = waits([&](ObjectStore::Place& place) { place.interrupted = [&asked] { return ++asked == 3; }; });
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().reason(), "Interrupted");
}

TEST_F(ObjectStoreWaitTest, DoesNotLastForEver) {
  const auto out = waits([](ObjectStore::Place& place) { place.longest = std::chrono::milliseconds(20); });
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().reason(), "ObjectStoreFull");
}

}  // namespace
}  // namespace shoal::actors
