// The end of actors that an actor or a function created: with the last counted handle, also when the creator's process is gone. Runs on a
// real cluster; this program is the driver and its workers.
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/cpp/handles.h"

namespace {

Result<Handle<Counts>> makes() { return shoal::context().spawn<Counts>({}, ""); }
// To be run by a worker that is used up after one function: creates two actors. The worker's pid is written to `file`.
Result<Handle<Holder>> makes_one_from(const std::string& file, bool again) {
  std::ofstream(file) << getpid();
  SHOAL_TRY(const auto inner, shoal::context().spawn<Counts>({}, ""));
  return shoal::context().spawn<Holder>({.max_restarts = again ? -1 : 0, .max_task_retries = -1}, std::vector{inner});
}
// Calls makes_one_from in another worker, and returns its result.
Result<Handle<Holder>> makes_by_another(const std::string& file) {
  std::ofstream(file + ".outer") << getpid();
  return shoal::context().remote<&makes_one_from>({.num_cpus = 0})(file, false).get();
}
// Creates an actor, whose only handle stays in a static variable of this process.
Result<ActorId> keeps_one(const std::string& file) {
  std::ofstream(file) << getpid();
  static Handle<Counts> kept;
  SHOAL_TRY(kept, shoal::context().spawn<Counts>({}, ""));
  SHOAL_OK(kept.call(&Counts::call).get());
  return kept.id();
}
// Creates an actor whose constructor argument is not ready yet.
Result<Handle<Counts>> makes_later(const std::string& file, const Future<std::string>& words) {
  std::ofstream(file) << getpid();
  return shoal::context().spawn<Counts>({}, words);
}
std::string words(const std::string& file) {
  await_file(file);
  return "";
}
std::string touches(const std::string& gate, const std::string& file) {
  await_file(gate);
  touch(file);
  return "";
}
// Makes two calls: it drops the future of the first and returns that of the second.
std::vector<Future<std::string>> leaves_behind(const std::string& file) {
  std::ofstream(file + ".pid") << getpid();
  (void)shoal::context().remote<&touches>({.num_cpus = 0})(file + ".gate", file + ".done");
  return {shoal::context().remote<&words>({.num_cpus = 0})(file + ".gate")};
}

using CppCreatorsTest = HandlesTest;

TEST_F(CppCreatorsTest, AnActorCreatedByAnActorEndsWithItsLastHandle) {
  const auto maker = holder();
  std::optional<Handle<Counts>> actor = maker.call(&Holder::make).get().value();
  const ActorId id = actor->id();
  still_there(id, calls(maker));
  ASSERT_TRUE(maker.call(&Holder::drop).get());
  still_there(id, [&] { return actor->call(&Counts::call).get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppCreatorsTest, AnActorCreatedByAFunctionEndsWithItsLastHandle) {
  std::optional<Handle<Counts>> actor = driver->remote<&makes>({.num_cpus = 0})().get().value();
  const ActorId id = actor->id();
  EXPECT_EQ(actor->call(&Counts::call).get().value(), 1);
  actor.reset();
  EXPECT_TRUE(ends(id));
}

// ---- workers that are used up after one function hand their actors on to the processes that have handles ----

TEST_F(CppCreatorsTest, AReturnedActorOutlivesTheFunctionsWorker) {
  const auto keeper = patient();
  for (const bool again : {false, true}) {
    const std::string pid = file("pid" + std::to_string(again));
    std::optional<Handle<Holder>> actor = keeper->remote<&makes_one_from>({.num_cpus = 0, .max_calls = 1})(pid, again).get().value();
    const ActorId id = actor->id(), inner = actor->call(&Holder::first).get().value().id();
    EXPECT_TRUE(exits(pid));
    if (again) {  // a restart needs the constructor's argument, which still exists
      ASSERT_TRUE(actor->call(&Holder::drop).get());
      ASSERT_EQ(kill(actor->call(&Holder::pid).get().value(), SIGKILL), 0);
      ASSERT_TRUE(until([&] { return row(id).num_restarts == 1; }));
    }
    still_there(inner, calls(*actor));
    actor.reset();
    EXPECT_TRUE(ends(id));
    EXPECT_TRUE(ends(inner));
  }
}

TEST_F(CppCreatorsTest, AnActorReturnedThroughTwoFunctionsEndsWithItsLastHandle) {
  const auto keeper = patient();
  std::optional<Handle<Holder>> actor = keeper->remote<&makes_by_another>({.num_cpus = 0, .max_calls = 1})(file("pid")).get().value();
  const ActorId id = actor->id();
  for (const char* pid : {"pid.outer", "pid"}) EXPECT_TRUE(exits(file(pid)));
  still_there(id, calls(*actor));
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppCreatorsTest, AnActorHeldOnlyByAFunctionsWorkerEndsWithIt) {
  const auto keeper = patient();
  const ActorId id = keeper->remote<&keeps_one>({.num_cpus = 0, .max_calls = 1})(file("pid")).get().value();
  EXPECT_TRUE(exits(file("pid")));
  EXPECT_TRUE(ends(id));
}

TEST_F(CppCreatorsTest, AnActorReturnedWithPendingArgumentsIsCreated) {
  const auto keeper = patient();
  const auto late = keeper->remote<&words>({.num_cpus = 0})(file("gate"));
  std::optional<Handle<Counts>> actor = keeper->remote<&makes_later>({.num_cpus = 0, .max_calls = 1})(file("pid"), late).get().value();
  const ActorId id = actor->id();
  const auto call = actor->call(&Counts::call);
  touch(file("gate"));
  EXPECT_EQ(call.get().value(), 1);
  EXPECT_TRUE(exits(file("pid")));
  still_there(id, [&] { return actor->call(&Counts::call).get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppCreatorsTest, OpenCallsOfAReturnedFunctionAreRun) {
  const auto keeper = patient(100ms);
  const auto left = keeper->remote<&leaves_behind>({.num_cpus = 0, .max_calls = 1})(file("left")).get().value();
  (void)shoal::wait(left, 1, 3s);  // waits longer than `needed`: in that time the worker reports that it still has open calls
  EXPECT_FALSE(left.at(0).ready());
  touch(file("left.gate"));
  const auto words = left.at(0).get();
  EXPECT_TRUE(words) << words.error().to_string();
  EXPECT_TRUE(until([&] { return there(file("left.done")); }));
  EXPECT_TRUE(exits(file("left.pid")));
}

}  // namespace

int main(int argc, char** argv) {
  using All = shoal::Functions<&makes, &makes_one_from, &makes_by_another, &keeps_one, &makes_later, &words, &touches, &leaves_behind>;
  return run_program<Counts, Holder, All>(argc, argv);
}
