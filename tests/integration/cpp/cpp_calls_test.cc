// Cancelled calls, calls with several results or a stream, concurrent calls, and references inside of values, on a real cluster. This
// program is the driver and its workers.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
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

void touch(const std::string& file) { std::ofstream(file) << "x"; }
void await_file(const std::string& file) {
  while (access(file.c_str(), F_OK) != 0) std::this_thread::sleep_for(1ms);
}

// ---- remote functions and actors ----

// Runs until it is cancelled.
Result<int> looks(const std::string& began) {
  touch(began);
  while (true) {
    SHOAL_OK(shoal::check_cancelled());
    std::this_thread::sleep_for(1ms);
  }
}
// Ends when it is cancelled, but returns a value.
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
// Waits for a function that another worker runs; cancelling this one cancels that one.
Result<int> asks_another(const std::string& began) { return shoal::context().remote<&looks>({.num_cpus = 0})(began).get(); }
// Waits for a future that is not cancelled with it.
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

shoal::Generator<int> counts(int to) {
  for (int i = 0; i < to; ++i) co_yield i;
}
shoal::Generator<Bytes> large(int count, const std::string& file) {
  for (int i = 0; i < count; ++i) co_yield Bytes(1 << 20);
  await_file(file);
}
// Yields an error at item `fails`, throws at item `throws`.
shoal::Generator<int> fails_at(int fails, int throws) {
  for (int i = 0;; ++i) {
    if (i == fails) co_yield shoal::fail(shoal::resource_exhausted("there are no more").with_reason("NoMore"));
    if (i == throws) throw std::runtime_error("oh");
    co_yield i;
  }
}

struct Parts {
  std::string name;
  std::vector<Future<int>> numbers;
  std::map<std::string, Future<Bytes>> blobs;
  Future<int> none;
  static constexpr auto fields = shoal::fields(&Parts::name, &Parts::numbers, &Parts::blobs, &Parts::none);
};
Result<int> sum(const Parts& parts) {
  int out = parts.none.valid() ? 1'000'000 : 0;
  for (const auto& n : parts.numbers) {
    SHOAL_TRY(const int number, n.get());
    out += number;
  }
  for (const auto& [name, blob] : parts.blobs) {
    SHOAL_TRY(const auto view, blob.view());
    out += static_cast<int>(view.size());
  }
  return out;
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
  // Yields one item, waits for the file, then yields one more.
  shoal::Generator<int> two(const std::string& file) {
    co_yield value_;
    await_file(file);
    co_yield value_ + 1;
  }
  shoal::Generator<int> until_cancelled() {
    co_yield 0;
    while (!shoal::is_cancelled()) std::this_thread::sleep_for(1ms);
    for (int i = 1;; ++i) co_yield i;
  }
  // Runs until its stream is dropped.
  shoal::Generator<int> endless(const std::string& ended) {
    const struct Ends {
      std::string file;
      ~Ends() { touch(file); }
    } ends{ended};
    for (int i = 0;; ++i) {
      co_yield i;
      std::this_thread::sleep_for(1ms);
    }
  }
  // Takes one item and drops the stream with this actor.
  Result<int> takes_one(const Handle<Counter>& other, const std::string& ended) {
    taken_.emplace(other.call(&Counter::endless, ended));
    SHOAL_TRY(const auto first, taken_->next());
    return first->get();
  }
  // The surroundings of this actor and of two that it spawns.
  Result<std::vector<std::string>> surroundings() const {
    SHOAL_TRY(const auto child, shoal::context().spawn<Counter>({}));
    SHOAL_TRY(const auto other, shoal::context().spawn<Counter>({.env = {{"OF_ONE", "other"}}}));
    SHOAL_TRY(auto of_child, child.call(&Counter::here).get());
    SHOAL_TRY(auto of_other, other.call(&Counter::here).get());
    return std::vector{here(), of_child, of_other};
  }
  std::string here() const { return ::surroundings(); }
  // References.
  bool is_ready(const Future<bool>& future) const { return future.ready(); }
  void keep(const std::vector<Future<Bytes>>& futures) { kept_ = futures; }
  Result<std::size_t> kept_bytes() const {
    SHOAL_TRY(const auto bytes, kept_.at(0).get());
    return bytes.size();
  }
  std::size_t open_files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
  }
  Result<std::size_t> open_files_with(const std::vector<Future<Bytes>>& futures) const {
    SHOAL_OK(futures.back().get());
    return open_files();
  }
  Future<int> begin(int n) const { return shoal::context().remote<&plus>({.num_cpus = 0})(n, 1); }
  Future<int> add_on(const Handle<Counter>& other, const Future<int>& number) const { return other.call(&Counter::add, number); }
  Result<void> stop(const std::vector<Future<int>>& futures) const { return shoal::cancel(futures.at(0)); }

  static constexpr auto methods =
      shoal::methods(&Counter::add, &Counter::looks, &Counter::does_not_care, &Counter::asks, &Counter::before_and_after,
                     &Counter::is_ready, &Counter::keep, &Counter::kept_bytes, &Counter::open_files, &Counter::open_files_with,
                     &Counter::begin, &Counter::add_on, &Counter::stop, &Counter::two, &Counter::until_cancelled, &Counter::endless,
                     &Counter::takes_one, &Counter::surroundings, &Counter::here);

 private:
  int value_ = 0;
  std::optional<shoal::Stream<int>> taken_;
  std::vector<Future<Bytes>> kept_;
};

// An actor with a constructor argument.
class Holder {
 public:
  explicit Holder(std::vector<Future<int>> given) : given_(std::move(given)) {}
  Result<int> first() const { return given_.at(0).get(); }
  static constexpr auto methods = shoal::methods(shoal::constructor<std::vector<Future<int>>>, &Holder::first);

 private:
  std::vector<Future<int>> given_;
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

class CppCallsTest : public testing::Test {
 protected:
  CppCallsTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~CppCallsTest() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  template <class T>
  static std::string reason(const Future<T>& future) {
    const auto result = future.get();
    if (result) return "";
    return result.error().reason();
  }
  std::string folder_ = "/tmp/shoal-cpp.XXXXXX";
};

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
  EXPECT_EQ(reason(waits), "TaskCancelled");  // it never began
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
  EXPECT_EQ(reason(asks), "TaskCancelled");  // the error of the call that it waits for
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
  EXPECT_EQ(reason(runs), "TaskCancelled");  // not retried
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
  EXPECT_EQ(call.get().value(), std::tuple(0, 5));  // or all at once
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

// ---- references inside of values ----

TEST_F(CppCallsTest, FuturesInsideOfValuesStayReferences) {
  const auto counter = driver->spawn<Counter>({}).value();
  Parts parts;
  parts.name = "all of them";
  parts.numbers = {counter.call(&Counter::add, 1), driver->put(20).value(), driver->remote<&plus>({.num_cpus = 0})(100, 200)};
  parts.blobs.emplace("large", driver->put(Bytes(1 << 20)).value());
  EXPECT_EQ(driver->remote<&sum>({.num_cpus = 0})(parts).get().value(), 321 + (1 << 20));
  EXPECT_EQ(driver->remote<&sum>({.num_cpus = 0})(driver->put(parts).value()).get().value(), 321 + (1 << 20));
  parts.numbers.push_back(driver->remote<&looks>({.num_cpus = 0})(file("began")));
  const auto fails = driver->remote<&sum>({.num_cpus = 0})(parts);
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(parts.numbers.back()));
  EXPECT_EQ(reason(fails), "TaskCancelled");  // the reader gets the cause
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AParameterThatIsAFutureIsNotWaitedFor) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto pending = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  EXPECT_FALSE(counter.call(&Counter::is_ready, pending).get().value());
  touch(file("gate"));
  ASSERT_TRUE(pending.get());
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AValueLivesAsLongAsItsReference) {
  const auto counter = driver->spawn<Counter>({}).value();
  for (const std::size_t size : {10u, 1u << 20}) {
    {
      const auto bytes = driver->put(Bytes(size)).value();
      ASSERT_TRUE(counter.call(&Counter::keep, std::vector{bytes}).get());
    }  // the actor's reference is the last one
    EXPECT_EQ(counter.call(&Counter::kept_bytes).get().value(), size);
  }
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AReferenceIsFetchedOnDemand) {
  const auto counter = driver->spawn<Counter>({}).value();
  std::vector<Future<Bytes>> futures;
  for (int i = 0; i < 200; ++i) futures.push_back(driver->put(Bytes(1000)).value());
  const auto before = counter.call(&Counter::open_files).get().value();
  EXPECT_LT(counter.call(&Counter::open_files_with, futures).get().value(), before + 100);
}

TEST_F(CppCallsTest, AFutureIsAResultAndIsPassedOn) {
  const auto a = driver->spawn<Counter>({}).value(), b = driver->spawn<Counter>({}).value();
  const auto begun = a.call(&Counter::begin, 5).get().value();  // the future belongs to another process
  EXPECT_EQ(begun.get().value(), 6);
  EXPECT_EQ(b.call(&Counter::add, begun).get().value(), 6);  // as an argument
  const auto added = a.call(&Counter::add_on, b, begun).get().value();
  EXPECT_EQ(added.get().value(), 12);
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(a.call(&Counter::begin, 1).get().value(), 1).get().value(), 3);
  for (const auto& h : {a, b}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, ARestartableActorRefusesReferencesInItsArguments) {
  const std::vector<Future<int>> given = {driver->put(7).value()};
  const auto holder = driver->spawn<Holder>({}, given).value();
  EXPECT_EQ(holder.call(&Holder::first).get().value(), 7);
  EXPECT_EQ(driver->spawn<Holder>({.max_restarts = 1}, given).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(driver->kill(holder));
}

// ---- streams ----

TEST_F(CppCallsTest, AStreamHasTheItemsOfAGeneratorInOrder) {
  for (const int count : {0, 1, 50}) {
    auto stream = driver->remote<&counts>({.num_cpus = 0})(count);
    int next = 0;
    for (const auto& item : stream) EXPECT_EQ(item.get().value(), next++);
    EXPECT_EQ(next, count);
    EXPECT_EQ(stream.completed().get().value(), static_cast<std::uint64_t>(count));
    EXPECT_FALSE(stream.next().value());  // the end is permanent
  }
}

TEST_F(CppCallsTest, AnItemArrivesBeforeTheNextIsReady) {
  const auto counter = driver->spawn<Counter>({}).value();
  auto stream = counter.call(&Counter::two, file("gate"));
  const auto first = stream.next().value();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->get().value(), 0);
  EXPECT_EQ(stream.next(10ms).error().code(), Code::kDeadlineExceeded);
  touch(file("gate"));
  EXPECT_EQ(stream.next().value()->get().value(), 1);
  EXPECT_FALSE(stream.next().value());
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, LargeItemsArePassedOn) {
  auto stream = driver->remote<&large>({.num_cpus = 0})(3, file("gate"));
  std::size_t all = 0;
  for (int i = 0; i < 3; ++i) {
    const auto item = stream.next().value();
    ASSERT_TRUE(item);
    all += driver->remote<&length>({.num_cpus = 0})(*item).get().value();
  }
  EXPECT_EQ(all, 3u << 20);
  touch(file("gate"));
  EXPECT_FALSE(stream.next().value());
}

TEST_F(CppCallsTest, TheLastItemOfAFailedStreamIsTheError) {
  const auto ends = [](shoal::Stream<int> stream) {
    std::vector<std::string> out;
    for (const auto& item : stream) out.push_back(item.get() ? std::to_string(item.get().value()) : item.get().error().reason());
    return out;
  };
  EXPECT_EQ(ends(driver->remote<&fails_at>({.num_cpus = 0})(2, -1)), (std::vector<std::string>{"0", "1", "NoMore"}));
  EXPECT_EQ(ends(driver->remote<&fails_at>({.num_cpus = 0})(-1, 1)), (std::vector<std::string>{"0", "MethodThrew"}));
  const auto counter = driver->spawn<Counter>({}).value();
  auto stream = counter.call(&Counter::two, file("never"));
  EXPECT_TRUE(stream.next().value());
  ASSERT_TRUE(driver->kill(counter));
  const auto died = ends(std::move(stream));
  ASSERT_EQ(died.size(), 1u);
  EXPECT_TRUE(died[0] == "ActorDied" || died[0] == "ActorUnavailable") << died[0];  // depends on which report arrives first
}

TEST_F(CppCallsTest, ACancelledStreamEndsAtTheNextItem) {
  const auto counter = driver->spawn<Counter>({}).value();
  auto stream = counter.call(&Counter::until_cancelled);
  EXPECT_EQ(stream.next().value()->get().value(), 0);
  ASSERT_TRUE(shoal::cancel(stream));
  std::vector<std::string> rest;
  for (const auto& item : stream) rest.push_back(reason(item));
  ASSERT_FALSE(rest.empty());
  EXPECT_LE(rest.size(), 2u);  // one more item, unless the worker had it already
  EXPECT_EQ(rest.back(), "TaskCancelled");
  EXPECT_EQ(counter.call(&Counter::add, 1).get().value(), 1);
  { const auto nobody_takes_it = counter.call(&Counter::two, file("gate")); }
  touch(file("gate"));
  EXPECT_EQ(counter.call(&Counter::add, 1).get().value(), 2);
  ASSERT_TRUE(driver->kill(counter));
}

shoal::Task<int> total(shoal::Stream<int> stream) {
  int out = 0;
  while (true) {
    SHOAL_CO_TRY(const auto item, co_await stream.async());
    if (!item) co_return out;
    SHOAL_CO_TRY(const int value, co_await item->async());
    out += value;
  }
}

TEST_F(CppCallsTest, ACoroutineAwaitsAStream) {
  EXPECT_EQ(driver->run(total(driver->remote<&counts>({.num_cpus = 0})(10))).value(), 45);
  EXPECT_EQ(driver->run(total(driver->remote<&fails_at>({.num_cpus = 0})(3, -1))).error().reason(), "NoMore");
}

// Returns the reason of the item after the first, which is the death of the worker.
shoal::Task<std::string> hand_over(shoal::Stream<int> stream, Handle<Counter> counter) {
  SHOAL_CO_TRY(const auto first, co_await stream.async());
  if (!first) co_return "it yields nothing";
  SHOAL_CO_OK(driver->kill(counter));
  SHOAL_CO_TRY(const auto last, co_await stream.async());
  if (!last) co_return "it ended well";
  SHOAL_CO_TRY(const auto after, co_await stream.async());
  if (after) co_return "it goes on";
  co_return last->get() ? "it is an item" : last->get().error().reason();
}

TEST_F(CppCallsTest, AnAwaitedStreamReportsTheDeathOfItsWorker) {
  for (int i = 0; i < 5; ++i) {
    const auto counter = driver->spawn<Counter>({}).value();
    const auto received = driver->run(hand_over(counter.call(&Counter::two, file("never")), counter), 60s);
    ASSERT_TRUE(received) << received.error().to_string();
    EXPECT_TRUE(*received == "ActorDied" || *received == "ActorUnavailable") << *received;  // depends on which report arrives first
  }
}

TEST_F(CppCallsTest, AStreamOfAnotherJobsActorWorks) {
  const auto counter = driver->spawn<Counter>({.name = "yields", .detached = true}).value();
  auto stream = driver->get_actor<Counter>("yields").value().call(&Counter::two, file("gate"));
  touch(file("gate"));
  for (const int wanted : {0, 1}) {
    const auto item = stream.next(60s);
    ASSERT_TRUE(item) << item.error().to_string();
    ASSERT_TRUE(*item);
    EXPECT_EQ((*item)->get().value(), wanted);
  }
  EXPECT_FALSE(stream.next().value());
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AGeneratorEndsWithItsReaderAndItsActorGoesOn) {
  for (const int threads : {1, 2}) {
    const auto counter = driver->spawn<Counter>({.max_concurrency = threads}).value(), caller = driver->spawn<Counter>({}).value();
    const std::string ended = file("ended" + std::to_string(threads));
    const auto first = caller.call(&Counter::takes_one, counter, ended).get(60s);
    ASSERT_TRUE(first) << first.error().to_string();
    EXPECT_EQ(*first, 0);
    ASSERT_TRUE(driver->kill(caller));
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (access(ended.c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(access(ended.c_str(), F_OK), 0);
    const auto next = counter.call(&Counter::add, 1).get(60s);
    ASSERT_TRUE(next) << next.error().to_string();
    EXPECT_EQ(*next, 1);
    ASSERT_TRUE(driver->kill(counter));
  }
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
  // The nested call is cancelled as well.
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
  const auto begun = loop.call(&Loop::begun);  // has to wait as well
  ASSERT_TRUE(shoal::cancel(calls[3]));
  EXPECT_EQ(reason(calls[3]), "TaskCancelled");  // it never began
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
  EXPECT_TRUE(grouped.call(&Grouped::reads, file("there")).get().value());  // the second of two
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
                               &sum, &counts, &large, &fails_at, &surroundings>;
  return run_program<Counter, Holder, Loop, Grouped, GroupedLoop, All>(argc, argv, options);
}
