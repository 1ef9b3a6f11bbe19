// An actor ends with its last counted handle in any process, after the calls that were made on it, on a real cluster. This program is the
// driver and its workers. For Python's handles see tests/semantics/scope_test.py.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/cpp/handles.h"

namespace {

// ---- remote functions and actors ----

// An actor whose methods are coroutines, so that they share one loop.
class OnLoop {
 public:
  shoal::Task<int> after(const Future<int>& gate) {
    SHOAL_CO_TRY(const int n, co_await gate.async());
    co_return n;
  }
  static constexpr auto methods = shoal::methods(&OnLoop::after);
};

struct Handles {
  std::string name;
  std::vector<Handle<Counts>> actors;
  std::optional<Handle<Counts>> one;
  Handle<Counts> none;
  static constexpr auto fields = shoal::fields(&Handles::name, &Handles::actors, &Handles::one, &Handles::none);
};

int after(const std::string& file, int n) {
  await_file(file);
  return n;
}
Result<int> uses(const Handle<Counts>& actor, int) { return actor.call(&Counts::call).get(); }
Result<int> uses_all(const Handles& handles) {
  int out = 0;
  for (const auto& actor : handles.actors) {
    SHOAL_TRY(const int n, actor.call(&Counts::call).get());
    out += n;
  }
  return out;
}
Result<std::vector<Handle<Counts>>> makes_none() { return shoal::fail(shoal::unavailable("it is not to be")); }

using CppHandlesTest = HandlesTest;

// ---- handles in one process ----

TEST_F(CppHandlesTest, AnActorEndsWhenNothingRefersToIt) {
  auto actor = driver->spawn<Counts>({}, file("words")).value();
  const ActorId id = actor.id();
  const pid_t pid = actor.call(&Counts::pid).get().value();
  auto copy = std::make_optional(actor);
  actor = {};
  still_there(id, [&] { return copy->call(&Counts::call).get(); });
  EXPECT_FALSE(there(file("words")));
  copy.reset();
  ASSERT_TRUE(ends(id));
  EXPECT_TRUE(until([&] { return kill(pid, 0) != 0; }));
  EXPECT_TRUE(there(file("words")));  // the actor's destructor has written the file
  const auto cause = row(id).cause;
  ASSERT_TRUE(cause);
  EXPECT_NE(cause->message().find("exited with code 0"), std::string::npos) << cause->to_string();
}

TEST_F(CppHandlesTest, EarlierCallsAreRunBeforeTheEnd) {
  for (const int threads : {1, 2}) {
    const std::string gate = file("gate" + std::to_string(threads));
    const auto late = driver->remote<&after>({.num_cpus = 0})(gate, 10);
    std::optional<Handle<Counts>> actor = counts({.max_concurrency = threads});
    const ActorId id = actor->id();
    const auto first = actor->call(&Counts::waits, gate), second = actor->call(&Counts::add, late);
    actor.reset();
    touch(gate);
    EXPECT_TRUE(first.get());
    EXPECT_TRUE(second.get());
    EXPECT_TRUE(ends(id));
  }
}

TEST_F(CppHandlesTest, RunningCallsOnThreadsFinish) {
  std::optional<Handle<Counts>> actor = counts({.max_concurrency = 2});
  const ActorId id = actor->id();
  const std::vector<Future<int>> calls = {actor->call(&Counts::waits, file("gate")), actor->call(&Counts::waits, file("gate")),
                                          actor->call(&Counts::waits, file("gate"))};
  actor.reset();
  EXPECT_TRUE(another_ends());
  touch(file("gate"));
  for (const auto& call : calls) EXPECT_TRUE(call.get());
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, RunningCoroutinesFinish) {
  const auto late = driver->remote<&after>({.num_cpus = 0})(file("gate"), 10);
  std::optional<Handle<OnLoop>> actor = driver->spawn<OnLoop>({}).value();
  const ActorId id = actor->id();
  const std::vector<Future<int>> calls = {actor->call(&OnLoop::after, late), actor->call(&OnLoop::after, late)};
  actor.reset();
  EXPECT_TRUE(another_ends());
  touch(file("gate"));
  for (const auto& call : calls) EXPECT_EQ(call.get().value(), 10);
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AChainedCallsHandleIsReleasedBeforeItsResult) {
  // the CPUs suffice for one actor at a time, so that each has to end before the next can start
  for (int i = 0; i < 3; ++i) EXPECT_EQ(counts({.num_cpus = 4}).call(&Counts::call).get().value(), 1);
}

TEST_F(CppHandlesTest, EachActorOfAMeshEndsWithItsOwnHandle) {
  auto mesh = std::make_optional(driver->spawn_mesh<Counts>(3, {}, "").value());
  const std::vector<ActorId> ids = {(*mesh)[0].id(), (*mesh)[1].id(), (*mesh)[2].id()};
  EXPECT_EQ(mesh->call_all(&Counts::call).get().value(), (std::vector<int>{1, 1, 1}));
  auto rest = std::make_optional(mesh->slice(1, 1));
  mesh.reset();
  EXPECT_TRUE(ends(ids[0]));
  EXPECT_TRUE(ends(ids[2]));
  still_there(ids[1], [&] { return (*rest)[0].call(&Counts::call).get(); });
  rest.reset();
  EXPECT_TRUE(ends(ids[1]));
}

TEST_F(CppHandlesTest, AnActorWithoutHandlesIsNotRestarted) {
  std::optional<Handle<Counts>> actor = counts({.max_restarts = -1});
  const ActorId id = actor->id();
  EXPECT_EQ(actor->call(&Counts::call).get().value(), 1);
  actor.reset();
  EXPECT_TRUE(ends(id));
  EXPECT_EQ(row(id).num_restarts, 0u);
}

TEST_F(CppHandlesTest, AnUnplacedActorIsWithdrawnUnlessACallWaits) {
  std::optional<Handle<Counts>> actor = counts({.resources = {{"nowhere", 1}}}), called = counts({.resources = {{"nowhere", 1}}});
  const ActorId id = actor->id(), waits = called->id();
  const auto call = called->call(&Counts::call);
  actor.reset();
  called.reset();
  EXPECT_TRUE(ends(id));
  EXPECT_EQ(row(waits).state, shoal::actors::ActorState::kPending);
}

TEST_F(CppHandlesTest, AnActorThatIsNeverCreatedEnds) {
  std::optional<Handle<Holder>> actor = driver->spawn<Holder>({}, driver->remote<&makes_none>({.num_cpus = 0})()).value();
  const ActorId id = actor->id();
  EXPECT_FALSE(actor->constructed().get());
  actor.reset();
  EXPECT_TRUE(ends(id));
}

// ---- handles in several processes ----

TEST_F(CppHandlesTest, AnActorEndsWhenAnotherProcessDropsItsHandle) {
  const auto has = holder();
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*actor}).get());
  actor.reset();
  still_there(id, calls(has));
  ASSERT_TRUE(has.call(&Holder::drop).get());
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorEndsWithTheLastOfSeveralHolders) {
  const auto has = holder(), other = holder();
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*actor}).get());
  actor.reset();
  ASSERT_TRUE(has.call(&Holder::pass_on, other).get());
  ASSERT_TRUE(has.call(&Holder::drop).get());
  still_there(id, calls(other));
  // the handle returns to the process that created the actor
  std::optional<Handle<Counts>> back = other.call(&Holder::first).get().value();
  ASSERT_TRUE(other.call(&Holder::drop).get());
  still_there(id, [&] { return back->call(&Counts::call).get(); });
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*back}).get());
  back.reset();
  back = std::get<1>(has.call(&Holder::two).get().value());  // the handle returns as one of several results
  ASSERT_TRUE(has.call(&Holder::drop).get());
  still_there(id, [&] { return back->call(&Counts::call).get(); });
  back.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorEndsWithTheProcessThatHoldsIt) {
  const auto has = holder();
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*actor}).get());
  actor.reset();
  still_there(id, calls(has));
  ASSERT_EQ(kill(has.call(&Holder::pid).get().value(), SIGKILL), 0);
  ASSERT_TRUE(ends(id));
  ASSERT_TRUE(row(id).cause);
  EXPECT_NE(row(id).cause->message().find("exited with code 0"), std::string::npos) << row(id).cause->to_string();
}

TEST_F(CppHandlesTest, CallsOfAnotherProcessAreRunBeforeTheEnd) {
  const auto has = holder();
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*actor}).get());
  actor.reset();
  const auto late = driver->remote<&after>({.num_cpus = 0})(file("late"), 10);
  const auto begun = has.call(&Holder::begin, file("gate"), late).get().value();
  touch(file("gate"));
  EXPECT_EQ(begun.at(0).get().value(), 1);
  EXPECT_EQ(begun.at(1).get().value(), 2);
  EXPECT_TRUE(another_ends());
  touch(file("late"));
  EXPECT_EQ(begun.at(2).get().value(), 12);
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorThatIsOnlyAPendingArgumentStays) {
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  const auto uses_it = driver->remote<&uses>({.num_cpus = 0})(*actor, driver->remote<&after>({.num_cpus = 0})(file("gate"), 1));
  actor.reset();
  touch(file("gate"));
  EXPECT_EQ(uses_it.get().value(), 1);
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorInAPutValueEndsWithTheValue) {
  std::vector<ActorId> ids;
  std::optional<Future<Handles>> put;
  {
    Handles handles{"two", {counts(), counts()}, {}, {}};
    handles.one = handles.actors[0];
    for (const auto& actor : handles.actors) ids.push_back(actor.id());
    put = driver->put(handles).value();
  }
  still_there(ids[0], [&] { return put->get().value().one->call(&Counts::call).get(); });
  still_there(ids[1], [&] { return put->get().value().actors.at(1).call(&Counts::call).get(); });
  const auto sum = driver->remote<&uses_all>({.num_cpus = 0})(*put).get();
  ASSERT_TRUE(sum) << sum.error().to_string();
  EXPECT_EQ(*sum, 10);
  auto outer = std::make_optional(driver->put(std::vector{*put}).value());  // a reference to a value with handles
  put.reset();
  still_there(ids[0], [&] { return outer->get().value().at(0).get().value().actors.at(0).call(&Counts::call).get(); });
  outer.reset();
  for (const ActorId id : ids) EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnEmptyHandleIsSerialized) {
  const auto none = driver->put(Handles()).value().get();
  ASSERT_TRUE(none) << none.error().to_string();
  EXPECT_FALSE(none->none.id());
  EXPECT_FALSE(none->one);
}

// ---- handles that an actor has of itself ----

TEST_F(CppHandlesTest, OwnHandlesDoNotKeepAnActor) {
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  EXPECT_EQ(actor->call(&Counts::touches_itself).get().value(), -1);
  still_there(id, [&] { return actor->call(&Counts::call).get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorThatPassedOnItsHandleEndsWithIt) {
  for (const int threads : {1, 2}) {
    const auto has = holder();
    std::optional<Handle<Counts>> actor = counts({.max_concurrency = threads});
    const ActorId id = actor->id();
    ASSERT_TRUE(actor->call(&Counts::introduces_itself, has).get());
    actor.reset();
    still_there(id, calls(has));
    // the holder keeps the new handle in the place of the first
    ASSERT_TRUE(has.call(&Holder::first).get().value().call(&Counts::introduces_itself, has).get());
    still_there(id, calls(has));
    ASSERT_TRUE(has.call(&Holder::drop).get());
    EXPECT_TRUE(ends(id));
  }
}

// ---- names, restarts, makers ----

TEST_F(CppHandlesTest, ANameDoesNotKeepAnActor) {
  const auto has = holder();
  std::optional<Handle<Counts>> actor = counts({.name = "called", .max_restarts = 1});
  const ActorId id = actor->id();
  const auto found = driver->get_actor<Counts>("called").value();
  const auto again = counts({.name = "called", .get_if_exists = true});
  const auto by_id = driver->handle<Counts>(id).value();
  EXPECT_EQ(again.id(), id);
  const auto kept = driver->put(std::vector{found, again, by_id}).value();  // these handles do not count, in whichever process they are
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{found}).get());
  still_there(id, [&] { return has.call(&Holder::call_of, "called").get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
  EXPECT_FALSE(found.call(&Counts::call).get());
  EXPECT_EQ(driver->get_actor<Counts>("called").error().reason(), "NoSuchName");
}

TEST_F(CppHandlesTest, AnActorCreatedByGetIfExistsEndsWithItsHandle) {
  std::optional<Handle<Counts>> actor = counts({.name = "first", .get_if_exists = true});
  const ActorId id = actor->id();
  still_there(id, [&] { return actor->call(&Counts::call).get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, ADetachedActorNeedsNoHandle) {
  std::optional<Handle<Counts>> actor = counts({.name = "detached", .detached = true});
  const ActorId id = actor->id();
  { const auto kept = driver->put(std::vector{*actor}).value(); }
  EXPECT_EQ(actor->call(&Counts::call).get().value(), 1);
  actor.reset();
  const auto found = driver->get_actor<Counts>("detached").value();
  still_there(id, [&] { return found.call(&Counts::call).get(); });
  ASSERT_TRUE(driver->kill(found));
}

TEST_F(CppHandlesTest, ARestartableActorThatDiesStillEndsForGood) {
  const auto has = holder();
  std::optional<Handle<Counts>> actor = counts({.max_restarts = -1, .max_task_retries = -1});
  const ActorId id = actor->id();
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*actor}).get());
  ASSERT_EQ(kill(actor->call(&Counts::pid).get().value(), SIGKILL), 0);
  ASSERT_TRUE(until([&] { return row(id).num_restarts == 1; }));
  actor.reset();
  still_there(id, calls(has));
  ASSERT_TRUE(has.call(&Holder::drop).get());
  EXPECT_TRUE(ends(id));
  EXPECT_EQ(row(id).num_restarts, 1u);
}

TEST_F(CppHandlesTest, ARestartableActorThatPassedOnItsHandleDoesNotRestartOnceItIsReleased) {
  for (const int threads : {1, 2}) {
    const auto has = holder();
    std::optional<Handle<Counts>> actor = counts({.max_concurrency = threads, .max_restarts = -1});
    const ActorId id = actor->id();
    const pid_t pid = actor->call(&Counts::pid).get().value();
    ASSERT_TRUE(actor->call(&Counts::introduces_itself, has).get());
    actor.reset();
    still_there(id, calls(has));
    // The actor answers its release once the head knows that it must not restart.
    ASSERT_TRUE(until([&] { return driver->session().loop().own([&] { return !driver->session().calls().any_open(id); }); }));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    EXPECT_TRUE(ends(id));
    EXPECT_EQ(row(id).num_restarts, 0u);
  }
}

TEST_F(CppHandlesTest, AConstructorArgumentActorStaysWhileItsActorMayRestart) {
  std::optional<Handle<Counts>> actor = counts();
  const ActorId id = actor->id();
  std::optional<Handle<Holder>> made_from =
      driver->spawn<Holder>({.max_restarts = -1, .max_task_retries = -1}, std::vector{*actor}).value();
  const ActorId other = made_from->id();
  actor.reset();
  ASSERT_TRUE(made_from->call(&Holder::drop).get());
  ASSERT_EQ(kill(made_from->call(&Holder::pid).get().value(), SIGKILL), 0);
  ASSERT_TRUE(until([&] { return row(other).num_restarts == 1; }));
  still_there(id, calls(*made_from));
  made_from.reset();
  EXPECT_TRUE(ends(other));
  EXPECT_TRUE(ends(id));
}

}  // namespace

int main(int argc, char** argv) {
  return run_program<Counts, OnLoop, Holder, shoal::Functions<&after, &uses, &uses_all, &makes_none>>(argc, argv);
}
