// References inside of values, as arguments and as results, on a real cluster. This program is the driver and its workers.
#include <filesystem>
#include <map>
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

// Runs until it is cancelled.
Result<int> looks(const std::string& began) {
  touch(began);
  while (true) {
    SHOAL_OK(shoal::check_cancelled());
    std::this_thread::sleep_for(1ms);
  }
}
bool waits_for(const std::string& file) {
  await_file(file);
  return true;
}
int plus(int a, int b) { return a + b; }

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

  static constexpr auto methods = shoal::methods(&Counter::add, &Counter::is_ready, &Counter::keep, &Counter::kept_bytes,
                                                 &Counter::open_files, &Counter::open_files_with, &Counter::begin, &Counter::add_on);

 private:
  int value_ = 0;
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

using CppReferencesTest = ProgramTest;

TEST_F(CppReferencesTest, FuturesInsideOfValuesStayReferences) {
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
  EXPECT_EQ(reason(fails), "TaskCancelled");  // the call fails with the error of the future that it reads
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppReferencesTest, AParameterThatIsAFutureIsNotWaitedFor) {
  const auto counter = driver->spawn<Counter>({}).value();
  const auto pending = driver->remote<&waits_for>({.num_cpus = 0})(file("gate"));
  EXPECT_FALSE(counter.call(&Counter::is_ready, pending).get().value());
  touch(file("gate"));
  ASSERT_TRUE(pending.get());
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppReferencesTest, AValueLivesAsLongAsItsReference) {
  const auto counter = driver->spawn<Counter>({}).value();
  for (const std::size_t size : {10u, 1u << 20}) {
    {
      const auto bytes = driver->put(Bytes(size)).value();
      ASSERT_TRUE(counter.call(&Counter::keep, std::vector{bytes}).get());
    }  // now the actor has the last reference
    EXPECT_EQ(counter.call(&Counter::kept_bytes).get().value(), size);
  }
  ASSERT_TRUE(driver->kill(counter));
}

TEST_F(CppReferencesTest, AReferenceIsFetchedOnDemand) {
  const auto counter = driver->spawn<Counter>({}).value();
  std::vector<Future<Bytes>> futures;
  for (int i = 0; i < 200; ++i) futures.push_back(driver->put(Bytes(1000)).value());
  const auto before = counter.call(&Counter::open_files).get().value();
  EXPECT_LT(counter.call(&Counter::open_files_with, futures).get().value(), before + 100);
}

TEST_F(CppReferencesTest, AFutureIsAResultAndIsPassedOn) {
  const auto a = driver->spawn<Counter>({}).value(), b = driver->spawn<Counter>({}).value();
  const auto begun = a.call(&Counter::begin, 5).get().value();  // `begun` is the future of a call that another process made
  EXPECT_EQ(begun.get().value(), 6);
  EXPECT_EQ(b.call(&Counter::add, begun).get().value(), 6);  // and can be an argument of a further call
  const auto added = a.call(&Counter::add_on, b, begun).get().value();
  EXPECT_EQ(added.get().value(), 12);
  EXPECT_EQ(driver->remote<&plus>({.num_cpus = 0})(a.call(&Counter::begin, 1).get().value(), 1).get().value(), 3);
  for (const auto& h : {a, b}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppReferencesTest, ARestartableActorRefusesReferencesInItsArguments) {
  const std::vector<Future<int>> given = {driver->put(7).value()};
  const auto holder = driver->spawn<Holder>({}, given).value();
  EXPECT_EQ(holder.call(&Holder::first).get().value(), 7);
  EXPECT_EQ(driver->spawn<Holder>({.max_restarts = 1}, given).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(driver->kill(holder));
}

}  // namespace

int main(int argc, char** argv) { return run_program<Counter, Holder, shoal::Functions<&looks, &waits_for, &plus, &sum>>(argc, argv); }
