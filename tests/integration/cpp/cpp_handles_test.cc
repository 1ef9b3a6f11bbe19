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

#include "tests/integration/cpp/program.h"

namespace {

using namespace std::chrono_literals;
using shoal::ActorId;
using shoal::Future;
using shoal::Handle;
using shoal::Result;
using shoal::actors::ActorRow;
using shoal::actors::ActorState;

constexpr auto kGuard = 120s;

void touch(const std::string& file) { std::ofstream(file) << "x"; }
bool there(const std::string& file) { return access(file.c_str(), F_OK) == 0; }
bool await_file(const std::string& file) {
  while (!there(file)) std::this_thread::sleep_for(1ms);
  return true;
}

// ---- remote functions and actors ----

class Holder;

class Counts {
 public:
  explicit Counts(std::string hand_over) : hand_over_(std::move(hand_over)) {}
  ~Counts() {
    if (!hand_over_.empty()) touch(hand_over_);
  }
  int call() { return ++calls_; }
  int add(int n) { return calls_ += n; }
  int waits(const std::string& file) {
    await_file(file);
    return ++calls_;
  }
  pid_t pid() const { return getpid(); }
  // Makes and drops a handle of itself, which does not keep the actor.
  Result<int> touches_itself() const {
    SHOAL_TRY(const auto self, shoal::context().handle<Counts>(shoal::context().actor()));
    return self.rank();
  }
  Result<void> introduces_itself(const Handle<Holder>& to) const;
  static constexpr auto methods = shoal::methods(shoal::constructor<std::string>, &Counts::call, &Counts::add, &Counts::waits, &Counts::pid,
                                                 &Counts::touches_itself, &Counts::introduces_itself);

 private:
  const std::string hand_over_;
  int calls_ = 0;
};

// An actor whose calls run on one loop.
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

class Holder {
 public:
  explicit Holder(std::vector<Handle<Counts>> actors) : actors_(std::move(actors)) {}
  void keep(const std::vector<Handle<Counts>>& actors) { actors_ = actors; }
  void drop() { actors_.clear(); }
  Result<int> call() const { return actors_.at(0).call(&Counts::call).get(); }
  Handle<Counts> first() const { return actors_.at(0); }
  std::tuple<int, Handle<Counts>> two() const { return {2, actors_.at(0)}; }
  Result<Handle<Counts>> make() {
    SHOAL_TRY(auto made, shoal::context().spawn<Counts>({}, ""));
    actors_ = {made};
    return made;
  }
  Result<void> pass_on(const Handle<Holder>& to) const { return to.call(&Holder::keep, actors_).get(); }
  // Makes calls that wait, and drops the handle that they were made on.
  std::vector<Future<int>> begin(const std::string& file, const Future<int>& late) {
    std::vector<Future<int>> out = {actors_.at(0).call(&Counts::waits, file), actors_.at(0).call(&Counts::call),
                                    actors_.at(0).call(&Counts::add, late)};
    actors_.clear();
    return out;
  }
  // Calls an actor by name. The handle from get_actor does not keep it.
  Result<int> call_of(const std::string& name) const {
    SHOAL_TRY(const auto found, shoal::context().get_actor<Counts>(name));
    return found.call(&Counts::call).get();
  }
  pid_t pid() const { return getpid(); }
  static constexpr auto methods =
      shoal::methods(shoal::constructor<std::vector<Handle<Counts>>>, &Holder::keep, &Holder::drop, &Holder::call, &Holder::first,
                     &Holder::two, &Holder::make, &Holder::pass_on, &Holder::begin, &Holder::call_of, &Holder::pid);

 private:
  std::vector<Handle<Counts>> actors_;
};

Result<void> Counts::introduces_itself(const Handle<Holder>& to) const {
  SHOAL_TRY(const auto self, shoal::context().handle<Counts>(shoal::context().actor()));
  return to.call(&Holder::keep, std::vector{self}).get();
}

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
Result<Handle<Counts>> makes() { return shoal::context().spawn<Counts>({}, ""); }
// Creates an actor in a process that runs one function only. `file` receives its pid.
Result<Handle<Holder>> makes_one_from(const std::string& file, bool again) {
  std::ofstream(file) << getpid();
  SHOAL_TRY(const auto inner, shoal::context().spawn<Counts>({}, ""));
  return shoal::context().spawn<Holder>({.max_restarts = again ? -1 : 0, .max_task_retries = -1}, std::vector{inner});
}
// Calls makes_one_from in a worker of its own.
Result<Handle<Holder>> makes_by_another(const std::string& file) {
  std::ofstream(file + ".outer") << getpid();
  return shoal::context().remote<&makes_one_from>({.num_cpus = 0})(file, false).get();
}
// The only handle stays in a static variable of this process.
Result<ActorId> keeps_one(const std::string& file) {
  std::ofstream(file) << getpid();
  static Handle<Counts> kept;
  SHOAL_TRY(kept, shoal::context().spawn<Counts>({}, ""));
  SHOAL_OK(kept.call(&Counts::call).get());
  return kept.id();
}
// Creates an actor before its constructor argument is ready.
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
Result<std::vector<Handle<Counts>>> makes_none() { return shoal::fail(shoal::unavailable("it is not to be")); }

class CppHandlesTest : public testing::Test {
 protected:
  CppHandlesTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~CppHandlesTest() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  static Handle<Counts> counts(const shoal::ActorOptions& options = {}) { return driver->spawn<Counts>(options, "").value(); }
  static Handle<Holder> holder(const shoal::ActorOptions& options = {}) {
    return driver->spawn<Holder>(options, std::vector<Handle<Counts>>()).value();
  }
  static ActorRow row(ActorId id) {
    const auto rows = driver->session().cluster().list(shoal::actors::ListRequest::What::kActors).value();
    for (const auto& row : rows.actors) {
      if (row.id == id) return row;
    }
    return {};
  }
  static bool until(const std::function<bool()>& done) {
    const auto over = std::chrono::steady_clock::now() + kGuard;
    while (!done()) {
      if (std::chrono::steady_clock::now() > over) return false;
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }
  static bool ends(ActorId id) {
    return until([&] { return row(id).state == ActorState::kDead; });
  }
  // Another driver of this program that waits very long for its actors' last calls, because the machine may be slow.
  static std::unique_ptr<shoal::Context> patient(std::chrono::milliseconds needed = 20min) {
    shoal::actors::SessionOptions session;
    std::ifstream token(driver->session().identity().folder + "/token");
    session.credentials.token = shoal::runtime::Token::parse(std::string(std::istreambuf_iterator<char>(token), {})).value();
    session.head = driver->session().head().endpoints();
    session.name = "patient";
    session.print_logs = false;
    auto options = driver->options();
    options.name_space.clear();
    options.hand_over = 20min;
    options.needed = needed;
    return std::make_unique<shoal::Context>(shoal::actors::Session::open(session).value(), options);
  }
  // Waits for the end of the process whose pid is in the file.
  static bool exits(const std::string& file) {
    pid_t pid = 0;
    std::ifstream(file) >> pid;
    return pid > 0 && until([&] { return kill(pid, 0) != 0; });
  }
  // Creates an actor, drops its handles and waits for its end. Any earlier end has been reported by then.
  static bool another_ends() {
    ActorId other;
    {
      const auto actor = counts();
      other = actor.id();
      const auto kept = driver->put(std::vector{actor}).value();  // as a handle of a process that has left
    }
    return ends(other);
  }
  // Checks that the actor answers. A wrong end would have been reported before these calls.
  static void still_there(ActorId id, const std::function<Result<int>()>& call) {
    ASSERT_TRUE(another_ends());
    const auto first = call();
    ASSERT_TRUE(first) << first.error().to_string();
    for (int i = 1; i <= 3; ++i) {
      const auto next = call();
      ASSERT_TRUE(next) << next.error().to_string();
      EXPECT_EQ(*next, *first + i);
    }
    EXPECT_EQ(row(id).state, ActorState::kAlive);
  }
  static std::function<Result<int>()> calls(const Handle<Holder>& of) {
    return [of] { return of.call(&Holder::call).get(); };
  }

  std::string folder_ = "/tmp/shoal-cpp.XXXXXX";
};

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
  EXPECT_TRUE(there(file("words")));  // its destructor has run
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
  for (int i = 0; i < 3; ++i) EXPECT_EQ(counts({.num_cpus = 4}).call(&Counts::call).get().value(), 1);  // the CPUs suffice for one actor
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
  std::optional<Handle<Counts>> back = other.call(&Holder::first).get().value();  // in the process that created it
  ASSERT_TRUE(other.call(&Holder::drop).get());
  still_there(id, [&] { return back->call(&Counts::call).get(); });
  ASSERT_TRUE(has.call(&Holder::keep, std::vector{*back}).get());
  back.reset();
  back = std::get<1>(has.call(&Holder::two).get().value());  // as one of several results
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

// ---- handles of itself ----

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
    ASSERT_TRUE(has.call(&Holder::first).get().value().call(&Counts::introduces_itself, has).get());  // replaces the first handle
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
  const auto kept = driver->put(std::vector{found, again, by_id}).value();  // in any process
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

TEST_F(CppHandlesTest, AnActorCreatedByAnActorEndsWithItsLastHandle) {
  const auto maker = holder();
  std::optional<Handle<Counts>> actor = maker.call(&Holder::make).get().value();
  const ActorId id = actor->id();
  still_there(id, calls(maker));
  ASSERT_TRUE(maker.call(&Holder::drop).get());
  still_there(id, [&] { return actor->call(&Counts::call).get(); });
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorCreatedByAFunctionEndsWithItsLastHandle) {
  std::optional<Handle<Counts>> actor = driver->remote<&makes>({.num_cpus = 0})().get().value();
  const ActorId id = actor->id();
  EXPECT_EQ(actor->call(&Counts::call).get().value(), 1);
  actor.reset();
  EXPECT_TRUE(ends(id));
}

// ---- used-up workers of functions hand their actors on to the processes that keep them ----

TEST_F(CppHandlesTest, AReturnedActorOutlivesTheFunctionsWorker) {
  const auto keeper = patient();
  for (const bool again : {false, true}) {
    const std::string pid = file("pid" + std::to_string(again));
    std::optional<Handle<Holder>> actor = keeper->remote<&makes_one_from>({.num_cpus = 0, .max_calls = 1})(pid, again).get().value();
    const ActorId id = actor->id(), inner = actor->call(&Holder::first).get().value().id();
    EXPECT_TRUE(exits(pid));
    if (again) {  // the constructor's argument still exists
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

TEST_F(CppHandlesTest, AnActorReturnedThroughTwoFunctionsEndsWithItsLastHandle) {
  const auto keeper = patient();
  std::optional<Handle<Holder>> actor = keeper->remote<&makes_by_another>({.num_cpus = 0, .max_calls = 1})(file("pid")).get().value();
  const ActorId id = actor->id();
  for (const char* pid : {"pid.outer", "pid"}) EXPECT_TRUE(exits(file(pid)));
  still_there(id, calls(*actor));
  actor.reset();
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorHeldOnlyByAFunctionsWorkerEndsWithIt) {
  const auto keeper = patient();
  const ActorId id = keeper->remote<&keeps_one>({.num_cpus = 0, .max_calls = 1})(file("pid")).get().value();
  EXPECT_TRUE(exits(file("pid")));
  EXPECT_TRUE(ends(id));
}

TEST_F(CppHandlesTest, AnActorReturnedWithPendingArgumentsIsCreated) {
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

TEST_F(CppHandlesTest, OpenCallsOfAReturnedFunctionAreRun) {
  const auto keeper = patient(100ms);
  const auto left = keeper->remote<&leaves_behind>({.num_cpus = 0, .max_calls = 1})(file("left")).get().value();
  (void)shoal::wait(left, 1, 3s);  // longer than `needed`, in which the worker reports that it is still in use
  EXPECT_FALSE(left.at(0).ready());
  touch(file("left.gate"));
  const auto words = left.at(0).get();
  EXPECT_TRUE(words) << words.error().to_string();
  EXPECT_TRUE(until([&] { return there(file("left.done")); }));
  EXPECT_TRUE(exits(file("left.pid")));
}

}  // namespace

int main(int argc, char** argv) {
  using All = shoal::Functions<&after, &uses, &uses_all, &makes, &makes_one_from, &makes_by_another, &keeps_one, &makes_later, &words,
                               &touches, &leaves_behind, &makes_none>;
  return run_program<Counts, OnLoop, Holder, All>(argc, argv);
}
