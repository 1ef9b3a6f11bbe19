// Cancelled calls, calls with several results, environments, and concurrent calls, on a real cluster. This program is the driver and its
// workers.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>

#include "actors/api/shoal.h"
#include "tests/integration/cpp/program.h"

namespace {

using namespace std::chrono_literals;
using shoal::Bytes;
using shoal::Code;
using shoal::Future;
using shoal::Handle;
using shoal::Result;

// ---- remote functions and actors ----

// Runs until it is cancelled.
Result<int> looks(const std::string& began) {
  touch(began);
  while (true) {
    SHOAL_OK(shoal::check_cancelled());
    std::this_thread::sleep_for(1ms);
  }
}
// Returns a value once it is cancelled, in the place of an error.
int does_not_care(const std::string& began) {
  touch(began);
  while (!shoal::is_cancelled()) std::this_thread::sleep_for(1ms);
  return 42;
}
pid_t never_ends(const std::string& began) {
  std::ofstream(began + ".pid") << getpid();
  touch(began);
  while (true) pause();
}
bool waits_for(const std::string& file) {
  await_file(file);
  return true;
}
// Waits for a function in another worker. If this call is cancelled, the function is cancelled as well.
Result<int> asks_another(const std::string& began) { return shoal::context().remote<&looks>({.num_cpus = 0})(began).get(); }
// Waits for a future of another call, which is not cancelled with this one.
Result<int> waits(const std::string& began, const Future<int>& other) {
  touch(began);
  return other.get();
}
int plus(int a, int b) { return a + b; }
std::size_t length(std::span<const std::byte> bytes) { return bytes.size(); }
std::tuple<int, int> divided(int a, int b) { return {a / b, a % b}; }
Result<std::tuple<std::string, Bytes>> named(const std::string& name, std::size_t size) {
  if (name.empty()) return shoal::fail(shoal::invalid_argument("it has no name").with_reason("NoName"));
  return std::tuple(name, Bytes(size));
}

std::string surroundings() {
  std::string out = std::filesystem::current_path();
  for (const char* name : {"OF_ALL", "OF_ONE"}) out += std::string(" ") + (std::getenv(name) != nullptr ? std::getenv(name) : "-");
  return out;
}

class Counter {
 public:
  int add(int n) { return value_ += n; }
  Result<int> looks(const std::string& began) const { return ::looks(began); }
  int does_not_care(const std::string& began) const { return ::does_not_care(began); }
  Result<int> asks(const Handle<Counter>& other, const std::string& began) const { return other.call(&Counter::looks, began).get(); }
  std::tuple<int, int> before_and_after(int n) {
    const int before = value_;
    return {before, value_ += n};
  }
  // The folder and variables of this actor's process, and of two actors that it spawns.
  Result<std::vector<std::string>> surroundings() const {
    SHOAL_TRY(const auto child, shoal::context().spawn<Counter>({}));
    SHOAL_TRY(const auto other, shoal::context().spawn<Counter>({.env = {{"OF_ONE", "other"}}}));
    SHOAL_TRY(auto of_child, child.call(&Counter::here).get());
    SHOAL_TRY(auto of_other, other.call(&Counter::here).get());
    return std::vector{here(), of_child, of_other};
  }
  std::string here() const { return ::surroundings(); }
  Result<void> stop(const std::vector<Future<int>>& futures) const { return shoal::cancel(futures.at(0)); }
  void keep(const std::vector<Future<Bytes>>& futures) { kept_ = futures; }
  Result<std::size_t> kept_bytes() const {
    SHOAL_TRY(const auto bytes, kept_.at(0).get());
    return bytes.size();
  }

  static constexpr auto methods =
      shoal::methods(&Counter::add, &Counter::looks, &Counter::does_not_care, &Counter::asks, &Counter::before_and_after, &Counter::stop,
                     &Counter::keep, &Counter::kept_bytes, &Counter::surroundings, &Counter::here);

 private:
  int value_ = 0;
  std::vector<Future<Bytes>> kept_;
};

// An actor whose methods are coroutines, so that many calls run at once.
class Loop {
 public:
  Loop() : self_(shoal::context().actor()) {}
  shoal::Task<int> after(const Future<bool>& gate, int n) {
    ++begun_;
    SHOAL_CO_OK(co_await gate.async());
    co_return n;
  }
  int begun() const { return begun_; }
  shoal::Task<int> naps() {
    asio::steady_timer timer(co_await asio::this_coro::executor, 1ms);
    co_await timer.async_wait(asio::use_awaitable);
    co_return begun_;
  }
  shoal::Task<int> asks(const Handle<Counter>& other, const std::string& began) {
    SHOAL_CO_TRY(const int out, co_await other.call(&Counter::looks, began).async());
    co_return out;
  }
  shoal::Task<Bytes> throws(int at) {
    if (at == 0) throw std::runtime_error("before");
    asio::steady_timer timer(co_await asio::this_coro::executor, 0ms);
    co_await timer.async_wait(asio::use_awaitable);
    if (at == 1) throw std::runtime_error("after");
    co_return Bytes(3);
  }
  pid_t pid() const { return getpid(); }
  shoal::ActorId self() const { return self_; }
  static constexpr auto methods =
      shoal::methods(&Loop::after, &Loop::begun, &Loop::naps, &Loop::asks, &Loop::throws, &Loop::pid, &Loop::self);

 private:
  const shoal::ActorId self_;
  int begun_ = 0;
};

class Grouped {
 public:
  bool reads(const std::string& file) const { return waits_for(file); }
  bool writes(const std::string& file) const { return waits_for(file); }
  bool neither(const std::string& file) const { return waits_for(file); }
  static constexpr auto methods = shoal::methods(&Grouped::reads, &Grouped::writes, &Grouped::neither);
  static constexpr auto concurrency_groups =
      shoal::concurrency_groups(shoal::concurrency_group(2, &Grouped::reads), shoal::concurrency_group(1, &Grouped::writes));
};

class GroupedLoop {
 public:
  shoal::Task<int> one(const Future<bool>& gate) {
    ++begun_;
    SHOAL_CO_OK(co_await gate.async());
    co_return begun_;
  }
  int begun() const { return begun_; }
  static constexpr auto methods = shoal::methods(&GroupedLoop::one, &GroupedLoop::begun);
  static constexpr auto concurrency_groups = shoal::concurrency_groups(shoal::concurrency_group(1, &GroupedLoop::one));

 private:
  int begun_ = 0;
};

using CppCallsTest = ProgramTest;

// ---- cancel ----

TEST_F(CppCallsTest, APollingMethodEndsWhenItIsCancelled) {
  const auto counter = driver->spawn<Counter>({}).value(), other = driver->spawn<Counter>({}).value();
  const auto runs = counter.call(&Counter::looks, file("began"));
  const auto waits = counter.call(&Counter::add, 1);
  const auto depends = other.call(&Counter::add, runs);
  await_file(file("began"));
  EXPECT_EQ(shoal::cancel(runs, {.force = true}).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(runs.ready());
  ASSERT_TRUE(shoal::cancel(waits));
  EXPECT_EQ(reason(waits), "TaskCancelled");  // the call had not begun
  EXPECT_FALSE(runs.ready());
  ASSERT_TRUE(shoal::cancel(runs));
  const auto ended = runs.get().error();
  EXPECT_EQ(ended.code(), Code::kCancelled);
  EXPECT_EQ(ended.reason(), "TaskCancelled") << ended.to_string();
  EXPECT_EQ(reason(depends), "TaskCancelled");
  EXPECT_EQ(counter.call(&Counter::add, 5).get().value(), 5);
  ASSERT_TRUE(shoal::cancel(runs));  // no effect on a finished call
  ASSERT_TRUE(shoal::cancel(driver->put(3).value()));
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, ACancelledMethodThatIgnoresItKeepsItsResult) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto runs = counter.call(&Counter::does_not_care, file("began"));
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(runs));
  EXPECT_EQ(runs.get().value(), 42);
  const auto again = counter.call(&Counter::looks, file("again"));  // the next call is not cancelled
  await_file(file("again"));
  EXPECT_FALSE(again.ready());
  ASSERT_TRUE(shoal::cancel(again));
  EXPECT_EQ(reason(again), "TaskCancelled");
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, NestedCallsAreCancelledWithTheirCall) {
  const auto counter = driver->spawn<Counter>({}).value(), other = driver->spawn<Counter>({}).value();
  const auto asks = counter.call(&Counter::asks, other, file("began"));
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(asks));
  EXPECT_EQ(reason(asks), "TaskCancelled");  // the error of the inner call, for which `asks` waits
  EXPECT_EQ(other.call(&Counter::add, 1).get().value(), 1);
  const auto function = driver->remote<&asks_another>({.num_cpus = 0})(file("function"));
  await_file(file("function"));
  ASSERT_TRUE(shoal::cancel(function));
  EXPECT_EQ(reason(function), "TaskCancelled");
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, CallsOnThreadsAreCancelledIndependently) {
  const auto counter = driver->spawn<Counter>({.max_concurrency = 2}).value();
  const auto one = counter.call(&Counter::looks, file("one")), two = counter.call(&Counter::looks, file("two"));
  const auto waits = counter.call(&Counter::add, 1);
  await_file(file("one"));
  await_file(file("two"));
  ASSERT_TRUE(shoal::cancel(one));
  EXPECT_EQ(reason(one), "TaskCancelled");
  EXPECT_EQ(waits.get().value(), 1);
  EXPECT_FALSE(two.ready());
  ASSERT_TRUE(shoal::cancel(two));
  EXPECT_EQ(reason(two), "TaskCancelled");
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AFunctionIsCancelledBeforeItBeginsAndWhileItPolls) {
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("never"));
  const auto kept = driver->remote<&looks>({.num_cpus = 0})(file("began"));
  const auto waits = driver->remote<&plus>({.num_cpus = 0})(1, kept);
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(waits));
  EXPECT_EQ(reason(waits), "TaskCancelled");
  EXPECT_FALSE(kept.ready());
  ASSERT_TRUE(shoal::cancel(kept));
  EXPECT_EQ(reason(kept), "TaskCancelled");
  const auto cares_not = driver->remote<&does_not_care>({.num_cpus = 0})(file("cares not"));
  await_file(file("cares not"));
  ASSERT_TRUE(shoal::cancel(cares_not));
  EXPECT_EQ(cares_not.get().value(), 42);
  EXPECT_FALSE(gate.ready());
  touch(file("never"));
  EXPECT_TRUE(gate.get().value());
}

TEST_F(CppCallsTest, CancelWakesAFunctionThatWaitsForAFuture) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto other = counter.call(&Counter::looks, file("other"));
  const auto runs = driver->remote<&waits>({.num_cpus = 0})(file("began"), other);
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(runs));
  EXPECT_EQ(reason(runs), "TaskCancelled");
  EXPECT_FALSE(other.ready());
  ASSERT_TRUE(shoal::cancel(other));
  EXPECT_EQ(reason(other), "TaskCancelled");
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, CancelByForceEndsTheProcessOfAFunction) {
  const auto runs = driver->remote<&never_ends>({.num_cpus = 0})(file("began"));
  const auto depends = driver->remote<&plus>({.num_cpus = 0})(1, runs);
  await_file(file("began"));
  pid_t pid = 0;
  std::ifstream(file("began.pid")) >> pid;
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(shoal::cancel(runs, {.force = true}));
  EXPECT_EQ(reason(runs), "TaskCancelled");  // a killed function is otherwise retried; a cancelled one is not
  EXPECT_EQ(reason(depends), "TaskCancelled");
  while (kill(pid, 0) == 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(1, 2).get().value(), 3);
}

TEST_F(CppCallsTest, AnotherProcessCancelsACall) {
  const auto counter = driver->spawn<Counter>({}).value(), other = driver->spawn<Counter>({}).value();
  const auto runs = counter.call(&Counter::looks, file("began"));
  await_file(file("began"));
  EXPECT_TRUE(other.call(&Counter::stop, std::vector{runs}).get());
  EXPECT_EQ(reason(runs), "TaskCancelled");
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

// ---- several results ----

TEST_F(CppCallsTest, EachOfSeveralResultsIsAFuture) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto call = counter.call(&Counter::before_and_after, 5);
  const auto [before, after] = call.results();
  EXPECT_EQ(before.get().value(), 0);
  EXPECT_EQ(after.get().value(), 5);
  EXPECT_EQ(call.get().value(), std::tuple(0, 5));  // the call's own future has both results
  const auto [quotient, rest] = driver->remote<&divided>({.num_cpus = 0})(17, 5).results();
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(quotient, rest).get().value(), 5);
  const auto all = driver->put(std::tuple(std::string("a"), 2)).value();
  EXPECT_EQ(std::get<1>(all.results()).get().value(), 2);
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, ALargeResultIsPassedOnByItself) {
  const auto [name, bytes] = driver->remote<&named>({.num_cpus = 0})("name", 1 << 20).results();
  EXPECT_EQ(driver->remote<&length>({.num_cpus = 0})(bytes).get().value(), 1u << 20);
  EXPECT_EQ(bytes.view().value().size(), 1u << 20);
  EXPECT_EQ(name.get().value(), "name");
  const auto counter = driver->spawn<Counter>({}).value();
  ASSERT_TRUE(counter.call(&Counter::keep, std::vector{bytes}).get());
  EXPECT_EQ(counter.call(&Counter::kept_bytes).get().value(), 1u << 20);
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AFailedCallFailsAllItsResults) {
  const auto [name, bytes] = driver->remote<&named>({.num_cpus = 0})("", 1).results();
  EXPECT_EQ(reason(name), "NoName");
  EXPECT_EQ(reason(bytes), "NoName");
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  const auto counter = driver->spawn<Counter>({}).value();
  const auto blocked = counter.call(&Counter::looks, file("began"));
  const auto [before, after] = counter.call(&Counter::before_and_after, 1).results();
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(after));  // cancels the whole call
  EXPECT_EQ(reason(before), "TaskCancelled");
  EXPECT_EQ(reason(after), "TaskCancelled");
  ASSERT_TRUE(shoal::cancel(blocked));
  EXPECT_EQ(counter.call(&Counter::add, 0).get().value(), 0);
  touch(file("gate"));
  EXPECT_TRUE(gate.get());
  ASSERT_TRUE(driver->kill(counter));
}

// ---- environments ----

TEST_F(CppCallsTest, AProcessStartsInItsFolderWithItsVariables) {
  const std::string here = std::filesystem::current_path();
  const auto plain = driver->spawn<Counter>({}).value();
  EXPECT_EQ(plain.call(&Counter::here).get().value(), here + " job -");
  const auto one = driver->spawn<Counter>({.env = {{"OF_ONE", "1"}, {"OF_ALL", "mine"}}, .working_dir = folder_}).value();
  EXPECT_EQ(one.call(&Counter::surroundings).get().value(),
            (std::vector<std::string>{folder_ + " mine 1", folder_ + " mine 1", folder_ + " mine other"}));
  EXPECT_EQ(driver->remote<&surroundings>({.num_cpus = 0, .env = {{"OF_ONE", "2"}}, .working_dir = folder_})().get().value(),
            folder_ + " job 2");
  EXPECT_EQ(driver->remote<&surroundings>({.num_cpus = 0, .env = {{"OF_ONE", "2"}}})().get().value(), here + " job 2");
  const auto none = driver->spawn<Counter>({.working_dir = file("none")}).error();
  EXPECT_EQ(none.code(), Code::kInvalidArgument) << none.to_string();
  EXPECT_EQ(driver->remote<&surroundings>({.num_cpus = 0, .working_dir = file("none")})().get().error().code(), Code::kInvalidArgument);
  for (const auto& h : {plain, one}) ASSERT_TRUE(driver->kill(h));
}

// ---- coroutines and concurrency groups ----

TEST_F(CppCallsTest, CoroutineMethodsRunConcurrentlyOnOneLoop) {
  const auto loop = driver->spawn<Loop>({}).value();
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  std::vector<Future<int>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(loop.call(&Loop::after, gate, i));
  EXPECT_EQ(loop.call(&Loop::begun).get().value(), 20);  // calls of one caller begin in order
  EXPECT_EQ(loop.call(&Loop::naps).get().value(), 20);
  touch(file("gate"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)].get().value(), i);
  for (const int at : {0, 1}) {
    const auto error = loop.call(&Loop::throws, at).get().error();
    EXPECT_EQ(error.reason(), "MethodThrew") << error.to_string();
  }
  EXPECT_EQ(loop.call(&Loop::throws, 2).get().value().size(), 3u);
  ASSERT_TRUE(driver->kill(loop));
}

TEST_F(CppCallsTest, ACoroutineIsCancelledAtItsAwait) {
  const auto loop = driver->spawn<Loop>({}).value();
  const auto counter = driver->spawn<Counter>({}).value();
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  const auto one = loop.call(&Loop::after, gate, 1), two = loop.call(&Loop::after, gate, 2);
  EXPECT_EQ(loop.call(&Loop::begun).get().value(), 2);
  ASSERT_TRUE(shoal::cancel(one));
  EXPECT_EQ(reason(one), "TaskCancelled");
  EXPECT_FALSE(two.ready());
  // Cancelling `asks` also cancels the call that it makes.
  const auto asks = loop.call(&Loop::asks, counter, file("began"));
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(asks));
  EXPECT_EQ(reason(asks), "TaskCancelled");
  EXPECT_EQ(counter.call(&Counter::add, 1).get().value(), 1);
  touch(file("gate"));
  EXPECT_EQ(two.get().value(), 2);
  EXPECT_TRUE(driver->kill(loop));
  EXPECT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, MaxConcurrencyBoundsRunningCoroutines) {
  const auto loop = driver->spawn<Loop>({.max_concurrency = 2}).value();
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  std::vector<Future<int>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(loop.call(&Loop::after, gate, i));
  const auto begun = loop.call(&Loop::begun);  // waits too, because both slots are taken
  ASSERT_TRUE(shoal::cancel(calls[3]));
  EXPECT_EQ(reason(calls[3]), "TaskCancelled");  // the call had not begun
  EXPECT_FALSE(begun.ready());
  touch(file("gate"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)].get().value(), i);
  EXPECT_EQ(begun.get().value(), 3);
  ASSERT_TRUE(driver->kill(loop));
  EXPECT_EQ(driver->spawn<Loop>({.max_concurrency = 0}).error().code(), Code::kInvalidArgument);
}

TEST_F(CppCallsTest, AnActorWithALoopRestarts) {
  const auto loop = driver->spawn<Loop>({.max_restarts = 1, .max_task_retries = -1}).value();
  const pid_t before = loop.call(&Loop::pid).get().value();
  EXPECT_EQ(loop.call(&Loop::naps).get().value(), 0);
  ASSERT_TRUE(driver->kill(loop, false));
  pid_t now = before;
  while (now == before) now = loop.call(&Loop::pid).get().value();
  EXPECT_EQ(loop.call(&Loop::self).get().value(), loop.id());
  EXPECT_EQ(loop.call(&Loop::naps).get().value(), 0);
  ASSERT_TRUE(driver->kill(loop));
}

TEST_F(CppCallsTest, AConcurrencyGroupHasItsOwnSlots) {
  const auto grouped = driver->spawn<Grouped>({}).value();
  touch(file("there"));
  const auto neither = grouped.call(&Grouped::neither, file("1")), writes = grouped.call(&Grouped::writes, file("2"));
  const auto first = grouped.call(&Grouped::reads, file("3"));
  EXPECT_TRUE(grouped.call(&Grouped::reads, file("there")).get().value());  // takes the second of the group's two slots, and returns
  const auto second = grouped.call(&Grouped::reads, file("4")), waits = grouped.call(&Grouped::reads, file("there"));
  const auto waits_too = grouped.call(&Grouped::writes, file("there"));
  ASSERT_TRUE(shoal::cancel(waits_too));
  EXPECT_EQ(reason(waits_too), "TaskCancelled");
  EXPECT_FALSE(waits.ready());
  touch(file("4"));
  EXPECT_TRUE(waits.get().value());
  for (const char* name : {"1", "2", "3"}) touch(file(name));
  for (const auto& call : {neither, writes, first, second}) EXPECT_TRUE(call.get().value());
  ASSERT_TRUE(driver->kill(grouped));
}

TEST_F(CppCallsTest, CoroutinesHaveConcurrencyGroupsToo) {
  const auto grouped = driver->spawn<GroupedLoop>({}).value();
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  const auto one = grouped.call(&GroupedLoop::one, gate), two = grouped.call(&GroupedLoop::one, gate);
  EXPECT_EQ(grouped.call(&GroupedLoop::begun).get().value(), 1);
  touch(file("gate"));
  EXPECT_EQ(one.get().value(), 1);
  EXPECT_EQ(two.get().value(), 2);
  ASSERT_TRUE(driver->kill(grouped));
}

}  // namespace

int main(int argc, char** argv) {
  shoal::MainOptions options;
  options.env = {{"OF_ALL", "job"}};
  using All = shoal::Functions<&looks, &does_not_care, &never_ends, &waits_for, &asks_another, &waits, &plus, &length, &divided, &named,
                               &surroundings>;
  return run_program<Counter, Loop, Grouped, GroupedLoop, All>(argc, argv, options);
}
