#include "actors/session/references/handles.h"

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

constexpr ActorId kActor{1}, kOther{2}, kSelf{9};
const ObjectKey kTheirs{JobId{1}, ObjectId{700}, NodeId{7}};

class HandlesTest : public testing::Test {
 protected:
  // Runs posted functions and sends the changes of references.
  void serve() {
    while (!posted_.empty()) {
      for (const auto& fn : std::exchange(posted_, {})) fn();
    }
    references_.flush();
  }
  // The actors released since the last call of this function, in order.
  std::vector<ActorId> reported() {
    serve();
    std::vector<ActorId> out;
    for (const auto& [actor, answer] : std::exchange(reported_, {})) {
      out.push_back(actor);
      answers_.push_back(answer);
    }
    return out;
  }
  void got(const ObjectKey& object, const char* reason) {
    const auto promise = waits_.at(object);
    waits_.erase(object);
    promise.set(fail(unavailable("it is gone").with_reason(reason)));
  }
  // The references to the object that this process has reported to the node, summed up.
  std::int64_t counted(const ObjectKey& object) {
    serve();
    return counts_[object];
  }

  // Runs the functions that wait for a pause to end.
  void pass() {
    for (const auto& fn : std::exchange(later_, {})) fn();
  }

  std::vector<std::function<void()>> posted_, later_;
  std::map<ObjectKey, std::int64_t> counts_;
  std::map<ObjectKey, runtime::Promise<Value>> waits_;  // by object: the waits for its end
  std::vector<std::pair<ActorId, runtime::Promise<Value>>> reported_;
  // The answers of released actors, to be set by a test.
  std::vector<runtime::Promise<Value>> answers_;
  std::vector<std::pair<ActorId, std::shared_ptr<const void>>> kept_;
  std::uint64_t next_ = 100;
  References references_{[] {},
                         [this](std::vector<References::Change> changes) {
                           for (const auto& c : changes) counts_[c.object] += c.by;
                         }};
  std::optional<Handles> handles_{
      std::in_place, references_,
      Handles::Actions{[this](std::function<void()> fn) { posted_.push_back(std::move(fn)); },
                       [this] { return ObjectKey{JobId{1}, ObjectId{next_++}, NodeId{1}}; },
                       [this](ActorId actor) {
                         reported_.emplace_back(actor, runtime::Promise<Value>());
                         return reported_.back().second.future();
                       },
                       [this](const ObjectKey& object) { return (waits_[object] = runtime::Promise<Value>()).future(); },
                       [this](ActorId actor, std::shared_ptr<const void> what) { kept_.emplace_back(actor, std::move(what)); },
                       [this](std::function<void()> fn) {
                         later_.push_back(std::move(fn));
                         return runtime::Timer();
                       }}};
};

TEST_F(HandlesTest, AHandleThatNeverTravelledEndsItsActorOnce) {
  auto one = handles_->add(kActor, {}), other = handles_->add(kOther, {});
  auto copy = one;
  one.reset();
  EXPECT_TRUE(reported().empty());
  copy.reset();
  EXPECT_TRUE(reported_.empty());  // a handle that is released outside of the loop sends nothing
  EXPECT_EQ(reported(), std::vector{kActor});
  other.reset();
  EXPECT_EQ(reported(), std::vector{kOther});
  EXPECT_TRUE(counts_.empty());
  EXPECT_TRUE(waits_.empty());
}

TEST_F(HandlesTest, AHandleThatTravelledEndsTheActorWhenNoReferenceIsLeft) {
  auto share = handles_->add(kActor, {});
  auto token = handles_->leaves(kActor, share);
  ASSERT_TRUE(token);
  EXPECT_EQ(handles_->leaves(kActor, share)->object, token->object);  // all handles of an actor share one lifetime token
  EXPECT_EQ(counted(token->object), 1);
  token->hold.reset();  // the value with the handle has been sent
  share.reset();
  EXPECT_TRUE(reported().empty());
  ASSERT_EQ(kept_.size(), 1u);
  EXPECT_EQ(kept_[0].first, kActor);
  EXPECT_EQ(counted(token->object), 1);  // open calls keep the actor
  kept_.clear();
  EXPECT_EQ(counted(token->object), 0);
  EXPECT_TRUE(reported().empty());
  got(token->object, "ObjectFreed");
  EXPECT_EQ(reported(), std::vector{kActor});
}

TEST_F(HandlesTest, ALostLifetimeTokenIsNotReported) {
  auto share = handles_->add(kActor, {});
  const auto object = handles_->leaves(kActor, share)->object;
  got(object, "ObjectLetGo");  // this node freed its entry, while the home keeps the object
  ASSERT_TRUE(waits_.contains(object));
  EXPECT_TRUE(reported().empty());
  got(object, "OwnerDied");
  EXPECT_FALSE(waits_.contains(object));
  EXPECT_TRUE(reported().empty());
}

TEST_F(HandlesTest, ABorrowedHandleIsAReferenceAndReportsNothing) {
  auto share = handles_->borrowed(kActor, kTheirs);
  EXPECT_EQ(counted(kTheirs), 1);
  EXPECT_EQ(handles_->leaves(kActor, share)->object, kTheirs);  // a handle that is passed on has the token it came with
  EXPECT_TRUE(waits_.empty());                                  // the token's maker alone waits for its end
  share.reset();
  EXPECT_TRUE(reported().empty());
  EXPECT_EQ(counted(kTheirs), 1);
  kept_.clear();
  EXPECT_EQ(counted(kTheirs), 0);
}

TEST_F(HandlesTest, AnUncountedHandleEndsNoActor) {
  EXPECT_FALSE(handles_->leaves(kActor, nullptr));
  EXPECT_FALSE(handles_->leaves({}, nullptr));
}

TEST_F(HandlesTest, AnActorsOwnKeepItOnlyWhereItGaveThemAway) {
  handles_->set_own_actor(kSelf);
  EXPECT_EQ(handles_->borrowed(kSelf, kTheirs), nullptr);
  EXPECT_TRUE(counts_.empty());
  EXPECT_TRUE(handles_->may_end());
  auto given = handles_->leaves(kSelf, nullptr);
  ASSERT_TRUE(given);
  EXPECT_EQ(handles_->leaves(kSelf, nullptr)->object, given->object);
  EXPECT_FALSE(handles_->may_end());
  EXPECT_FALSE(handles_->may_end());  // a second release finds the same handles
  given->hold.reset();
  EXPECT_EQ(counted(given->object), 0);
  got(given->object, "ObjectFreed");
  EXPECT_EQ(reported(), std::vector{kSelf});  // the actor releases itself
  EXPECT_TRUE(handles_->may_end());
}

TEST_F(HandlesTest, AnUnacknowledgedReleaseIsSentAgain) {
  auto kept = std::make_shared<const Value>();
  auto again = handles_->add(kActor, {.restarts = true, .kept = kept}), once = handles_->add(kOther, {});
  again.reset();
  once.reset();
  EXPECT_EQ(reported(), (std::vector{kActor, kOther}));
  answers_.at(0).set(fail(unavailable("it died, and is started again").with_reason("ActorUnavailable")));
  answers_.at(1).set(fail(resource_exhausted("it has too many calls")));
  answers_.clear();
  EXPECT_TRUE(reported().empty());
  EXPECT_EQ(handles_->left().size(), 2u);
  pass();
  EXPECT_EQ(reported(), (std::vector{kActor, kOther}));
  EXPECT_EQ(kept.use_count(), 2);
  for (const auto& answer : std::exchange(answers_, {})) answer.set(fail(unavailable("it ended").with_reason("ActorDied")));
  pass();
  EXPECT_TRUE(reported().empty());
  EXPECT_TRUE(handles_->left().empty());
  EXPECT_EQ(kept.use_count(), 1);  // the value for restarts is kept no longer
}

TEST_F(HandlesTest, ALaterRepeatIsDroppedWhenTheSessionEnds) {
  handles_->add(kActor, {}).reset();
  EXPECT_EQ(reported(), std::vector{kActor});
  answers_.at(0).set(fail(resource_exhausted("it has too many calls")));
  handles_.reset();
  pass();
  EXPECT_TRUE(reported().empty());
}

TEST_F(HandlesTest, ALeavingProcessHandsItsActorsOver) {
  auto never_left = handles_->add(kActor, {.class_name = "A"}), gone = handles_->add(kSelf, {.class_name = "C"});
  auto left = handles_->add(kOther, {.class_name = "B", .restarts = true, .kept = std::make_shared<const Value>()});
  const auto token = handles_->leaves(kOther, left)->object;
  gone.reset();
  EXPECT_EQ(reported(), std::vector{kSelf});
  auto all = handles_->left();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(std::tuple(all[0].actor, all[0].making.class_name, all[0].making.restarts, all[0].token),
            std::tuple(kActor, "A", false, std::nullopt));
  EXPECT_EQ(std::tuple(all[1].actor, all[1].making.class_name, all[1].making.restarts, all[1].token), std::tuple(kOther, "B", true, token));
  EXPECT_TRUE(all[1].making.kept);
  EXPECT_EQ(all[2].actor, kSelf);  // its release has no answer yet
  answers_.at(0).set(fail(unavailable("it ended").with_reason("ActorDied")));
  EXPECT_EQ(handles_->left().size(), 2u);

  waits_.clear();
  for (auto& one : all) handles_->adopt(std::move(one));  // handles_ stands for another process's Handles here
  EXPECT_EQ(reported(), (std::vector{kActor, kSelf}));    // those without a token end at once
  got(token, "ObjectFreed");
  EXPECT_EQ(reported(), std::vector{kOther});
}

TEST_F(HandlesTest, HandlesMayOutliveTheSession) {
  auto share = handles_->add(kActor, {}), left = handles_->add(kOther, {}), unreported = handles_->add(kSelf, {});
  auto token = handles_->leaves(kOther, left);
  unreported.reset();
  handles_.reset();
  for (auto* h : {&share, &left}) h->reset();
  token.reset();
  EXPECT_TRUE(reported().empty());
  EXPECT_TRUE(kept_.empty());
}

}  // namespace
}  // namespace shoal::actors
