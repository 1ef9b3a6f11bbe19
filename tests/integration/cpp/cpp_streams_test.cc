// Calls that return a stream: generators of functions and actors, and their ends, on a real cluster. This program is the driver and its
// workers.
#include <unistd.h>

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/api/shoal.h"
#include "tests/integration/cpp/program.h"

namespace {

using namespace std::chrono_literals;
using shoal::Bytes;
using shoal::Code;
using shoal::Future;
using shoal::Handle;
using shoal::Result;

std::size_t length(std::span<const std::byte> bytes) { return bytes.size(); }

shoal::Generator<int> counts(int to) {
  for (int i = 0; i < to; ++i) co_yield i;
}
shoal::Generator<Bytes> large(int count, const std::string& file) {
  for (int i = 0; i < count; ++i) co_yield Bytes(1 << 20);
  await_file(file);
}
// Yields numbers: item `fails` is an error, and at item `throws` the generator throws.
shoal::Generator<int> fails_at(int fails, int throws) {
  for (int i = 0;; ++i) {
    if (i == fails) co_yield shoal::fail(shoal::resource_exhausted("there are no more").with_reason("NoMore"));
    if (i == throws) throw std::runtime_error("oh");
    co_yield i;
  }
}

class Counter {
 public:
  int add(int n) { return value_ += n; }
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
  // Yields numbers until the reader drops the stream; then the file `ended` appears.
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
  // Takes one item; the stream is dropped when this actor ends.
  Result<int> takes_one(const Handle<Counter>& other, const std::string& ended) {
    taken_.emplace(other.call(&Counter::endless, ended));
    SHOAL_TRY(const auto first, taken_->next());
    return first->get();
  }

  static constexpr auto methods =
      shoal::methods(&Counter::add, &Counter::two, &Counter::until_cancelled, &Counter::endless, &Counter::takes_one);

 private:
  int value_ = 0;
  std::optional<shoal::Stream<int>> taken_;
};

using CppStreamsTest = ProgramTest;

TEST_F(CppStreamsTest, AStreamHasTheItemsOfAGeneratorInOrder) {
  for (const int count : {0, 1, 50}) {
    auto stream = driver->remote<&counts>({.num_cpus = 0})(count);
    int next = 0;
    for (const auto& item : stream) EXPECT_EQ(item.get().value(), next++);
    EXPECT_EQ(next, count);
    EXPECT_EQ(stream.completed().get().value(), static_cast<std::uint64_t>(count));
    EXPECT_FALSE(stream.next().value());  // after its end a stream has no further item
  }
}

TEST_F(CppStreamsTest, AnItemArrivesBeforeTheNextIsReady) {
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

TEST_F(CppStreamsTest, LargeItemsArePassedOn) {
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

TEST_F(CppStreamsTest, TheLastItemOfAFailedStreamIsTheError) {
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
  // depends on which report arrives first: that of the death, or that of the lost connection
  EXPECT_TRUE(died[0] == "ActorDied" || died[0] == "ActorUnavailable") << died[0];
}

TEST_F(CppStreamsTest, ACancelledStreamEndsAtTheNextItem) {
  const auto counter = driver->spawn<Counter>({}).value();
  auto stream = counter.call(&Counter::until_cancelled);
  EXPECT_EQ(stream.next().value()->get().value(), 0);
  ASSERT_TRUE(shoal::cancel(stream));
  std::vector<std::string> rest;
  for (const auto& item : stream) rest.push_back(reason(item));
  ASSERT_FALSE(rest.empty());
  EXPECT_LE(rest.size(), 2u);  // the error, and before it one item if the worker had yielded that before the cancellation arrived
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

TEST_F(CppStreamsTest, ACoroutineAwaitsAStream) {
  EXPECT_EQ(driver->run(total(driver->remote<&counts>({.num_cpus = 0})(10))).value(), 45);
  EXPECT_EQ(driver->run(total(driver->remote<&fails_at>({.num_cpus = 0})(3, -1))).error().reason(), "NoMore");
}

// Kills the actor after the stream's first item. Returns the reason of the error that the stream yields next.
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

TEST_F(CppStreamsTest, AnAwaitedStreamReportsTheDeathOfItsWorker) {
  for (int i = 0; i < 5; ++i) {
    const auto counter = driver->spawn<Counter>({}).value();
    const auto received = driver->run(hand_over(counter.call(&Counter::two, file("never")), counter), 60s);
    ASSERT_TRUE(received) << received.error().to_string();
    // depends on which report arrives first: that of the death, or that of the lost connection
    EXPECT_TRUE(*received == "ActorDied" || *received == "ActorUnavailable") << *received;
  }
}

TEST_F(CppStreamsTest, AStreamOfAnotherJobsActorWorks) {
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

TEST_F(CppStreamsTest, AGeneratorEndsWithItsReaderAndItsActorGoesOn) {
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

}  // namespace

int main(int argc, char** argv) { return run_program<Counter, shoal::Functions<&length, &counts, &large, &fails_at>>(argc, argv); }
