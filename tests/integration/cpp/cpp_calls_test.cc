// Calls that are cancelled, or have several results, and references that travel inside of values: on a real cluster of which this program
// is driver and workers.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/api/shoal.h"

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

// ---- what runs remotely ----

// Until it is cancelled.
Result<int> looks(const std::string& began) {
  touch(began);
  while (true) {
    SHOAL_OK(shoal::check_cancelled());
    std::this_thread::sleep_for(1ms);
  }
}
// Ends when it is cancelled, but as if nothing were.
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
// It waits for one that another function runs; that one ends with it.
Result<int> asks_another(const std::string& began) { return shoal::context().remote<&looks>({.num_cpus = 0})(began).get(); }
// It waits for what nobody cancels.
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
  // References.
  bool is_ready(const Future<bool>& future) const { return future.ready(); }
  void keep(const std::vector<Future<Bytes>>& futures) { kept_ = futures; }
  Result<std::size_t> kept_bytes() const {
    SHOAL_TRY(const auto bytes, kept_.at(0).get());
    return bytes.size();
  }
  Future<int> begin(int n) const { return shoal::context().remote<&plus>({.num_cpus = 0})(n, 1); }
  Future<int> add_on(const Handle<Counter>& other, const Future<int>& number) const { return other.call(&Counter::add, number); }
  Result<void> stop(const std::vector<Future<int>>& futures) const { return shoal::cancel(futures.at(0)); }

  static constexpr auto methods =
      shoal::methods(&Counter::add, &Counter::looks, &Counter::does_not_care, &Counter::asks, &Counter::before_and_after,
                     &Counter::is_ready, &Counter::keep, &Counter::kept_bytes, &Counter::begin, &Counter::add_on, &Counter::stop);

 private:
  int value_ = 0;
  std::vector<Future<Bytes>> kept_;
};

// With something to be made from.
class Holder {
 public:
  explicit Holder(std::vector<Future<int>> given) : given_(std::move(given)) {}
  Result<int> first() const { return given_.at(0).get(); }
  static constexpr auto methods = shoal::methods(shoal::constructor<std::vector<Future<int>>>, &Holder::first);

 private:
  std::vector<Future<int>> given_;
};

shoal::Context* driver = nullptr;

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

TEST_F(CppCallsTest, AMethodThatLooksEndsWhenItIsCancelled) {
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
  ASSERT_TRUE(shoal::cancel(runs));  // done: nothing happens
  ASSERT_TRUE(shoal::cancel(driver->put(3).value()));
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, WhatAMethodReturnsThatGoesOnIsItsResult) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto runs = counter.call(&Counter::does_not_care, file("began"));
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(runs));
  EXPECT_EQ(runs.get().value(), 42);
  const auto again = counter.call(&Counter::looks, file("again"));  // and the next call is not cancelled
  await_file(file("again"));
  EXPECT_FALSE(again.ready());
  ASSERT_TRUE(shoal::cancel(again));
  EXPECT_EQ(reason(again), "TaskCancelled");
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, CallsThatWereMadeInOneAreCancelledWithIt) {
  const auto counter = driver->spawn<Counter>({}).value(), other = driver->spawn<Counter>({}).value();
  const auto asks = counter.call(&Counter::asks, other, file("began"));
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(asks));
  EXPECT_EQ(reason(asks), "TaskCancelled");  // that of the one which it waits for
  EXPECT_EQ(other.call(&Counter::add, 1).get().value(), 1);
  const auto function = driver->remote<&asks_another>({.num_cpus = 0})(file("function"));
  await_file(file("function"));
  ASSERT_TRUE(shoal::cancel(function));
  EXPECT_EQ(reason(function), "TaskCancelled");
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, CallsOfThreadsAreCancelledOneByOne) {
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

TEST_F(CppCallsTest, AFunctionIsCancelledBeforeItBeginsAndWhileItLooks) {
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

TEST_F(CppCallsTest, AFunctionThatWaitsForAFutureWaitsNoLonger) {
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

TEST_F(CppCallsTest, AFunctionThatIsCancelledByForceEndsWithItsProcess) {
  const auto runs = driver->remote<&never_ends>({.num_cpus = 0})(file("began"));
  const auto depends = driver->remote<&plus>({.num_cpus = 0})(1, runs);
  await_file(file("began"));
  pid_t pid = 0;
  std::ifstream(file("began.pid")) >> pid;
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(shoal::cancel(runs, {.force = true}));
  EXPECT_EQ(reason(runs), "TaskCancelled");  // and it is not run again
  EXPECT_EQ(reason(depends), "TaskCancelled");
  while (kill(pid, 0) == 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(1, 2).get().value(), 3);
}

TEST_F(CppCallsTest, AnotherProcessCancelsACallOfThisOne) {
  const auto counter = driver->spawn<Counter>({}).value(), other = driver->spawn<Counter>({}).value();
  const auto runs = counter.call(&Counter::looks, file("began"));
  await_file(file("began"));
  EXPECT_TRUE(other.call(&Counter::stop, std::vector{runs}).get());
  EXPECT_EQ(reason(runs), "TaskCancelled");
  for (const auto& h : {counter, other}) ASSERT_TRUE(driver->kill(h));
}

// ---- several results ----

TEST_F(CppCallsTest, SeveralResultsAreFuturesOfTheirOwn) {
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

TEST_F(CppCallsTest, ALargeResultIsPassedOnWithoutTheOthers) {
  const auto [name, bytes] = driver->remote<&named>({.num_cpus = 0})("name", 1 << 20).results();
  EXPECT_EQ(driver->remote<&length>({.num_cpus = 0})(bytes).get().value(), 1u << 20);
  EXPECT_EQ(bytes.view().value().size(), 1u << 20);
  EXPECT_EQ(name.get().value(), "name");
  const auto counter = driver->spawn<Counter>({}).value();
  ASSERT_TRUE(counter.call(&Counter::keep, std::vector{bytes}).get());
  EXPECT_EQ(counter.call(&Counter::kept_bytes).get().value(), 1u << 20);
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, ACallThatFailsFailsAllItsResults) {
  const auto [name, bytes] = driver->remote<&named>({.num_cpus = 0})("", 1).results();
  EXPECT_EQ(reason(name), "NoName");
  EXPECT_EQ(reason(bytes), "NoName");
  const auto gate = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  const auto counter = driver->spawn<Counter>({}).value();
  const auto blocked = counter.call(&Counter::looks, file("began"));
  const auto [before, after] = counter.call(&Counter::before_and_after, 1).results();
  await_file(file("began"));
  ASSERT_TRUE(shoal::cancel(after));  // the call, that is
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
  EXPECT_EQ(reason(fails), "TaskCancelled");  // whoever asks hears why there is none
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

TEST_F(CppCallsTest, WhatAReferenceRefersToLivesAsLongAsIt) {
  const auto counter = driver->spawn<Counter>({}).value();
  for (const std::size_t size : {10u, 1u << 20}) {
    {
      const auto bytes = driver->put(Bytes(size)).value();
      ASSERT_TRUE(counter.call(&Counter::keep, std::vector{bytes}).get());
    }  // nobody else has it
    EXPECT_EQ(counter.call(&Counter::kept_bytes).get().value(), size);
  }
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppCallsTest, AFutureIsAResultAndIsPassedOn) {
  const auto a = driver->spawn<Counter>({}).value(), b = driver->spawn<Counter>({}).value();
  const auto begun = a.call(&Counter::begin, 5).get().value();  // of a process that is not this one
  EXPECT_EQ(begun.get().value(), 6);
  EXPECT_EQ(b.call(&Counter::add, begun).get().value(), 6);  // as an argument
  const auto added = a.call(&Counter::add_on, b, begun).get().value();
  EXPECT_EQ(added.get().value(), 12);
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(a.call(&Counter::begin, 1).get().value(), 1).get().value(), 3);
  for (const auto& h : {a, b}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppCallsTest, AnActorIsMadeFromReferencesUnlessItIsMadeAgain) {
  const std::vector<Future<int>> given = {driver->put(7).value()};
  const auto holder = driver->spawn<Holder>({}, given).value();
  EXPECT_EQ(holder.call(&Holder::first).get().value(), 7);
  EXPECT_EQ(driver->spawn<Holder>({.max_restarts = 1}, given).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(driver->kill(holder));
}

}  // namespace

// A worker of this program finds the same environment, but SHOAL_NODE.
int main(int argc, char** argv) {
  std::string home = "/tmp/shoal-cpp.XXXXXX";
  const bool is_worker = std::getenv("SHOAL_NODE") != nullptr;
  if (!is_worker) {
    if (mkdtemp(home.data()) == nullptr) return 1;
    setenv("SHOAL_HOME", home.c_str(), 1);
    unsetenv("SHOAL_ADDRESS");
  }
  shoal::MainOptions options;
  options.num_cpus = 4;
  options.print_logs = false;
  using All =
      shoal::Functions<&looks, &does_not_care, &never_ends, &waits_for, &asks_another, &waits, &plus, &length, &divided, &named, &sum>;
  const int code = shoal::main<Counter, Holder, All>(
      argc, argv,
      [&](shoal::Context& context) {
        driver = &context;
        testing::InitGoogleTest(&argc, argv);
        return RUN_ALL_TESTS();
      },
      options);
  if (!is_worker) std::filesystem::remove_all(home);
  return code;
}
