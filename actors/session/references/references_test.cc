#include "actors/session/references/references.h"

#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "actors/value/call.h"

namespace shoal::actors {
namespace references_test {

const ObjectKey kOne{JobId{1}, ObjectId{1}}, kTwo{JobId{1}, ObjectId{2}};
constexpr WorkerId kOther{7};

class ReferencesTest : public testing::Test {
 protected:
  // Changes sent to the node since the last call, by object and holder.
  std::map<std::pair<ObjectKey, WorkerId>, std::int64_t> reported() {
    references_->flush();
    return std::exchange(reported_, {});
  }
  std::map<std::pair<ObjectKey, WorkerId>, std::int64_t> reported_;
  int wakes_ = 0;
  std::optional<References> references_{std::in_place, [this] { ++wakes_; },
                                        [this](std::vector<References::Change> changes) {
                                          for (const auto& c : changes) reported_[{c.object, c.holder}] += c.by;
                                        }};
};

using Told = std::map<std::pair<ObjectKey, WorkerId>, std::int64_t>;

TEST_F(ReferencesTest, ReportsTheFirstReferenceAndTheLast) {
  auto first = references_->hold({kOne}), second = references_->hold({kOne});
  EXPECT_EQ(reported(), (Told{{{kOne, {}}, 1}}));
  first.reset();
  EXPECT_EQ(reported(), Told());
  second.reset();
  EXPECT_EQ(reported(), (Told{{{kOne, {}}, -1}}));
}

TEST_F(ReferencesTest, TakesOffAtOnceAllThatWasCountedForIt) {
  auto first = references_->received({kOne, kTwo}), second = references_->received({kOne});
  auto own = references_->hold({kOne});
  first.reset();
  EXPECT_EQ(reported(), (Told{{{kTwo, {}}, -1}}));
  second.reset();
  own.reset();
  EXPECT_EQ(reported(), (Told{{{kOne, {}}, -2}}));
}

TEST_F(ReferencesTest, CountsForTheReceiverBeforeItTakesItsOwnOff) {
  std::vector<std::pair<WorkerId, std::int64_t>> order;
  References references([] {},
                        [&](std::vector<References::Change> changes) {
                          for (const auto& c : changes) order.emplace_back(c.holder, c.by);
                        });
  auto hold = references.hold({kOne});
  {
    Value value;
    value.refer({kOne}, std::exchange(hold, nullptr));
    references.sending(value, kOther, {});
  }
  references.flush();
  EXPECT_EQ(order, (std::vector<std::pair<WorkerId, std::int64_t>>{{{}, 1}, {kOther, 1}, {{}, -1}}));
}

TEST_F(ReferencesTest, WakesOncePerBatch) {
  const auto hold = references_->hold({kOne, kTwo});
  EXPECT_EQ(wakes_, 1);
  reported();
  references_->received({kOne});
  EXPECT_EQ(wakes_, 1);  // the process holds the object already
}

TEST_F(ReferencesTest, AHoldMayOutliveTheSession) {
  auto hold = references_->hold({kOne});
  references_.reset();
  hold.reset();
  EXPECT_EQ(wakes_, 1);
}

TEST_F(ReferencesTest, AReceivedValueIsKeptOnceAsBytesOrAsADescriptor) {
  struct Counting final : ValueMemory {
    Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) override { return pool.fill(bytes, parts); }
    void keeps(const std::shared_ptr<SharedMemory>& memory) override { ++kept[memory]; }
    runtime::SegmentPool pool;
    std::map<std::shared_ptr<SharedMemory>, int> kept;
  } memory;
  const std::string text(300'000, 'x');
  const Value large = Value::make({std::as_bytes(std::span(text))}).value();
  for (const bool local : {true, false}) {
    Value value = value_from(to_message(large, local).value(), &memory).value();
    arrived(value, *references_, memory);
    EXPECT_EQ(memory.kept, (std::map<std::shared_ptr<SharedMemory>, int>{{value.memory(), 1}}));
    memory.kept.clear();
  }
}

}  // namespace references_test
}  // namespace shoal::actors
