// Actors that count calls and hold handles, and a fixture that observes an actor's end in the head's rows.
#pragma once

#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/integration/cpp/program.h"

using namespace std::chrono_literals;
using shoal::ActorId;
using shoal::Future;
using shoal::Handle;
using shoal::Result;
using shoal::actors::ActorRow;
using shoal::actors::ActorState;

inline constexpr auto kGuard = 120s;

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
  // Makes and drops a handle of this actor itself. Such a handle does not keep the actor alive.
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
  // Makes calls that have to wait, and drops the handle on which they were made.
  std::vector<Future<int>> begin(const std::string& file, const Future<int>& late) {
    std::vector<Future<int>> out = {actors_.at(0).call(&Counts::waits, file), actors_.at(0).call(&Counts::call),
                                    actors_.at(0).call(&Counts::add, late)};
    actors_.clear();
    return out;
  }
  // Calls an actor by its name. The handle that get_actor returns does not keep the actor alive.
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

inline Result<void> Counts::introduces_itself(const Handle<Holder>& to) const {
  SHOAL_TRY(const auto self, shoal::context().handle<Counts>(shoal::context().actor()));
  return to.call(&Holder::keep, std::vector{self}).get();
}

class HandlesTest : public ProgramTest {
 protected:
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
  // A second driver in this process, which waits up to 20 minutes for the last calls of its actors, because the machine may be slow.
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
  // Creates another actor, drops its handles and waits for its end. An end that was requested earlier has been reported by then.
  static bool another_ends() {
    ActorId other;
    {
      const auto actor = counts();
      other = actor.id();
      const auto kept = driver->put(std::vector{actor}).value();  // this handle leaves the process, as part of a stored value
    }
    return ends(other);
  }
  // Checks that an actor is alive: an end that was requested wrongly would have been reported before the calls here.
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
};
