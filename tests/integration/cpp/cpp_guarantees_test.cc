// C++ actors and functions give the guarantees that Python's give, on a real cluster. This program is the driver and its workers.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/api/shoal.h"
#include "tests/integration/cpp/program.h"

namespace {

using namespace std::chrono_literals;
using shoal::Code;
using shoal::Error;
using shoal::Future;
using shoal::Handle;
using shoal::Result;

class Counter {
 public:
  Counter(shoal::Place place, int start) : place_(place), value_(start) {
    if (start < 0) throw std::invalid_argument("it starts below zero");
  }
  int add(int n) { return value_ += n; }
  pid_t pid() const { return getpid(); }
  std::uint32_t restarts() const { return place_.context->num_restarts(); }
  shoal::ActorId self() const { return place_.context->actor(); }
  // Dies at its first call, which creates the folder `file`.
  int die_once(const std::string& file) {
    if (mkdir(file.c_str(), 0700) == 0) raise(SIGKILL);
    return value_;
  }
  Result<int> add_to(const Handle<Counter>& other, int n) const { return other.call(&Counter::add, n).get(); }
  Result<Handle<Counter>> make(const std::string& name, bool detached) const {
    return place_.context->spawn<Counter>({.name = name, .detached = detached}, 7);
  }
  static constexpr auto methods = shoal::methods(shoal::constructor<shoal::Place, int>, &Counter::add, &Counter::pid, &Counter::restarts,
                                                 &Counter::self, &Counter::die_once, &Counter::add_to, &Counter::make);

 private:
  shoal::Place place_;
  int value_;
};

// An actor whose calls wait for each other.
class Meeting {
 public:
  void meet() { latch_.arrive_and_wait(); }
  static constexpr auto methods = shoal::methods(&Meeting::meet);

 private:
  std::latch latch_{3};
};

class Other {
 public:
  int f() const { return 1; }
  static constexpr auto methods = shoal::methods(&Other::f);
};

double mean(const std::vector<double>& xs) {
  double sum = 0;
  for (const double x : xs) sum += x;
  return sum / static_cast<double>(xs.size());
}
int square(int n) { return n * n; }
std::size_t length(std::span<const std::byte> bytes) { return bytes.size(); }
pid_t where() { return getpid(); }
shoal::Bytes filled(int n, int with) {
  shoal::Bytes out(static_cast<std::size_t>(n));
  std::memset(out.data(), with, out.size());
  return out;
}
Result<int> divided(int a, int b) {
  if (b == 0) return shoal::fail(shoal::unavailable("nobody divides by zero").with_reason("Zero"));
  return a / b;
}
// Kills its process in each of the first `times` attempts, and then returns `times`. The folders 0, 1, ... in `folder` count the attempts.
int survives(const std::string& folder, int times) {
  for (int i = 0; i < times; ++i) {
    if (mkdir((folder + "/" + std::to_string(i)).c_str(), 0700) == 0) raise(SIGKILL);
  }
  return times;
}
bool wait_for(const std::string& file) {
  while (access(file.c_str(), F_OK) != 0) std::this_thread::sleep_for(5ms);
  return true;
}
int never_listed(int n) { return n; }

class CppGuaranteesTest : public testing::Test {
 protected:
  CppGuaranteesTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~CppGuaranteesTest() override { std::filesystem::remove_all(folder_); }
  // Kills a process, and returns when it is gone.
  void end_process(pid_t pid) {
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    while (kill(pid, 0) == 0) std::this_thread::sleep_for(5ms);
  }
  // Calls `counter` until a call fails with ActorDied.
  void dies(const Handle<Counter>& counter) {
    std::string reason;
    while (reason != "ActorDied") {
      const auto result = counter.call(&Counter::add, 1).get();
      reason = result ? "" : result.error().reason();
    }
  }
  void touch(const std::string& name) { std::ofstream(folder_ + "/" + name) << "x"; }
  std::string folder_ = "/tmp/shoal-cpp.XXXXXX";
};

// ---- names ----

TEST_F(CppGuaranteesTest, AnActorIsFoundByItsName) {
  const auto counter = driver->spawn<Counter>({.name = "found"}, 5).value();
  const auto again = driver->get_actor<Counter>("found").value();
  EXPECT_EQ(again.id(), counter.id());
  EXPECT_EQ(again.call(&Counter::add, 1).get().value(), 6);
  EXPECT_EQ(driver->spawn<Counter>({.name = "found"}, 5).error().reason(), "NameTaken");
  const auto existing = driver->spawn<Counter>({.name = "found", .get_if_exists = true}, 100).value();
  EXPECT_EQ(existing.call(&Counter::add, 0).get().value(), 6);
  EXPECT_EQ(driver->get_actor<Counter>("found", "elsewhere").error().reason(), "NoSuchName");
  const Error wrong = driver->get_actor<Other>("found").error();
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
  EXPECT_NE(wrong.message().find("Counter"), std::string::npos) << wrong.message();
  ASSERT_TRUE(driver->kill(counter));
  EXPECT_EQ(driver->get_actor<Counter>("found").error().reason(), "NoSuchName");
  ASSERT_TRUE(driver->kill(driver->spawn<Counter>({.name = "found", .name_space = "elsewhere"}, 5).value()));
}

TEST_F(CppGuaranteesTest, InvalidOptionsAreRefused) {
  const auto refused = [](const shoal::ActorOptions& o) { return driver->spawn<Counter>(o, 1).error().code() == Code::kInvalidArgument; };
  EXPECT_TRUE(refused({.get_if_exists = true}));
  EXPECT_TRUE(refused({.max_concurrency = 0}));
  EXPECT_EQ(driver->spawn_mesh<Counter>(2, {.name = "m"}, 1).error().code(), Code::kInvalidArgument);
  const auto start = driver->put(3).value();
  EXPECT_EQ(driver->spawn<Counter>({.max_restarts = 1}, start).error().code(), Code::kInvalidArgument);
}

TEST_F(CppGuaranteesTest, ADetachedActorOutlivesItsCreator) {
  const auto maker = driver->spawn<Counter>({}, 0).value();
  const auto made = maker.call(&Counter::make, "stays", true).get().value();  // a handle as a result
  EXPECT_EQ(made.call(&Counter::add, 1).get().value(), 8);
  const auto goes = maker.call(&Counter::make, "", false).get().value();
  ASSERT_TRUE(driver->kill(maker));
  const auto found = driver->get_actor<Counter>("stays").value();
  EXPECT_EQ(found.call(&Counter::add, 1).get().value(), 9);
  EXPECT_EQ(found.call(&Counter::self).get().value(), found.id());
  const auto rows = driver->session().cluster().list(shoal::actors::ListRequest::What::kActors).value();
  for (const auto& row : rows.actors) {
    EXPECT_TRUE(row.id != found.id() || row.job != driver->job());
  }
  ASSERT_TRUE(driver->kill(found));
}

// ---- restarts ----

TEST_F(CppGuaranteesTest, AnActorRestartsWithItsArguments) {
  const auto c = driver->spawn<Counter>({.max_restarts = 1}, 10).value();
  EXPECT_EQ(c.call(&Counter::add, 5).get().value(), 15);
  end_process(c.call(&Counter::pid).get().value());
  // Repeats the call: one that is lost with the process fails, one that is not sent yet waits for the restart.
  std::optional<int> after;
  while (!after) {
    const auto result = c.call(&Counter::add, 1).get();
    if (result) {
      after = *result;
    } else {
      ASSERT_EQ(result.error().reason(), "ActorUnavailable") << result.error().to_string();
    }
  }
  EXPECT_EQ(*after, 11);
  EXPECT_EQ(c.call(&Counter::restarts).get().value(), 1u);
  EXPECT_EQ(c.call(&Counter::self).get().value(), c.id());
  end_process(c.call(&Counter::pid).get().value());
  dies(c);
}

TEST_F(CppGuaranteesTest, ALostCallIsRetried) {
  const auto c = driver->spawn<Counter>({.max_restarts = -1, .max_task_retries = 1}, 10).value();
  EXPECT_EQ(c.call(&Counter::die_once, folder_ + "/once").get().value(), 10);
  ASSERT_TRUE(driver->kill(c));
}

TEST_F(CppGuaranteesTest, KillWithRestartEndsOnlyTheProcess) {
  const auto c = driver->spawn<Counter>({.max_restarts = 1, .max_task_retries = -1}, 10).value();
  const pid_t before = c.call(&Counter::pid).get().value();
  ASSERT_TRUE(driver->kill(c, false));
  pid_t now = before;
  while (now == before) now = c.call(&Counter::pid).get().value();
  ASSERT_TRUE(driver->kill(c));
  EXPECT_EQ(c.call(&Counter::pid).get().error().reason(), "ActorDied");
}

TEST_F(CppGuaranteesTest, AConstructorErrorCausesNoRestart) {
  const auto c = driver->spawn<Counter>({.max_restarts = -1}, -1).value();
  EXPECT_NE(c.constructed().get().error().message().find("it starts below zero"), std::string::npos);
  EXPECT_EQ(c.call(&Counter::pid).get().error().reason(), "ActorDied");
}

// ---- threads ----

TEST_F(CppGuaranteesTest, CallsOfAnActorWithThreadsRunConcurrently) {
  const auto m = driver->spawn<Meeting>({.max_concurrency = 3}).value();
  const std::vector<Future<void>> calls = {m.call(&Meeting::meet), m.call(&Meeting::meet), m.call(&Meeting::meet)};
  for (const auto& c : calls) EXPECT_TRUE(c.get());
  ASSERT_TRUE(driver->kill(m));
}

// ---- futures and handles as arguments; large values ----

TEST_F(CppGuaranteesTest, AFutureArgumentIsResolved) {
  const auto a = driver->spawn<Counter>({}, 1).value();
  const auto b = driver->spawn<Counter>({}, 100).value();
  const auto first = a.call(&Counter::add, 2);
  const auto second = b.call(&Counter::add, first);
  const auto third = b.call(&Counter::add, 1);  // runs after `second`, whose argument is pending
  EXPECT_EQ(third.get().value(), 104);
  EXPECT_EQ(second.get().value(), 103);
  const auto put = driver->put(std::vector<double>{1, 2, 6}).value();
  EXPECT_EQ(driver->remote<&mean>()(put).get().value(), 3);
  // The error of an argument becomes the error of the call.
  const Error e = b.call(&Counter::add, driver->remote<&divided>()(1, 0)).get().error();
  EXPECT_EQ(e.reason(), "Zero");
  EXPECT_EQ(b.call(&Counter::add, 0).get().value(), 104);
  const auto c = driver->spawn<Counter>({}, first).value();  // a future as an argument of a constructor
  EXPECT_EQ(c.call(&Counter::add, 0).get().value(), 3);
  for (const auto& h : {a, b, c}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppGuaranteesTest, AHandleIsAnArgument) {
  const auto a = driver->spawn<Counter>({}, 1).value();
  const auto b = driver->spawn<Counter>({}, 100).value();
  const auto sum = a.call(&Counter::add_to, b, 5).get();
  ASSERT_TRUE(sum) << sum.error().to_string();
  EXPECT_EQ(*sum, 105);
  for (const auto& h : {a, b}) ASSERT_TRUE(driver->kill(h));
}

TEST_F(CppGuaranteesTest, LargeBytesAreReadWithoutACopy) {
  const auto large = driver->remote<&filled>()(10'000'000, 7);
  const auto view = large.view().value();
  ASSERT_EQ(view.size(), 10'000'000u);
  EXPECT_EQ(view.span()[9'999'999], std::byte{7});
  EXPECT_EQ(large.view().value().span().data(), view.span().data());  // both views are of the same memory
  EXPECT_EQ(driver->remote<&length>()(large).get().value(), 10'000'000u);
  const auto put = driver->put(filled(1'000'000, 1)).value();
  EXPECT_EQ(driver->remote<&length>()(put).get().value(), 1'000'000u);
  EXPECT_EQ(put.get().value().size(), 1'000'000u);
}

// ---- functions ----

TEST_F(CppGuaranteesTest, FunctionsRunInOtherProcesses) {
  std::vector<Future<int>> squares;
  for (int i = 0; i < 200; ++i) squares.push_back(driver->remote<&square>()(i));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(squares[static_cast<std::size_t>(i)].get().value(), i * i);
  EXPECT_NE(driver->remote<&where>()().get().value(), getpid());
  const Error e = driver->remote<&divided>()(1, 0).get().error();
  EXPECT_EQ(e.to_string(), "error[Unavailable/Zero]: nobody divides by zero\n  in: function {anonymous}::divided");
  EXPECT_EQ(driver->remote<&never_listed>()(1).get().error().code(), Code::kInvalidArgument);
  const Error never = driver->remote<&square>({.num_cpus = 1000})(1).get(200ms).error();
  EXPECT_EQ(never.code(), Code::kDeadlineExceeded);
}

// The process of this test's cluster: the only child of this process.
pid_t cluster_process() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (std::isdigit(entry.path().filename().c_str()[0]) == 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto end = text.rfind(") ");
    char state = 0;
    pid_t parent = 0;
    if (end != std::string::npos && std::sscanf(text.c_str() + end + 2, "%c %d", &state, &parent) == 2 && parent == getpid()) {
      return static_cast<pid_t>(std::stoi(entry.path().filename()));
    }
  }
  return 0;
}

TEST_F(CppGuaranteesTest, AFunctionCallDoesNotWaitForTheHead) {
  const pid_t cluster = cluster_process();
  ASSERT_GT(cluster, 0);
  ASSERT_EQ(kill(cluster, SIGSTOP), 0);
  // the first call with these options, so that no worker exists for it
  const auto squared = driver->remote<&square>({.num_cpus = 0.25})(3);
  EXPECT_EQ(squared.get(1ms).error().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(kill(cluster, SIGCONT), 0);
  EXPECT_EQ(squared.get().value(), 9);
}

TEST_F(CppGuaranteesTest, AFunctionWhoseWorkerDiesIsRetried) {
  EXPECT_EQ(driver->remote<&survives>()(folder_, 3).get().value(), 3);
  std::filesystem::remove_all(folder_);
  ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0);
  const Error e = driver->remote<&survives>({.max_retries = 1})(folder_, 3).get().error();
  EXPECT_EQ(e.reason(), "WorkerCrashed") << e.to_string();
  EXPECT_NE(e.message().find("was killed by SIGKILL"), std::string::npos) << e.to_string();
}

TEST_F(CppGuaranteesTest, WaitReturnsTheReadyFutures) {
  const auto quick = driver->spawn<Counter>({}, 1).value();
  const std::vector<Future<int>> calls = {quick.call(&Counter::add, 1), quick.call(&Counter::add, 2), quick.call(&Counter::add, 3)};
  const auto all = shoal::wait(calls, 3).value();
  EXPECT_EQ(all.ready, (std::vector<std::size_t>{0, 1, 2}));
  const auto one = shoal::wait(calls, 1).value();  // returns at most one as ready, although three are
  EXPECT_EQ(one.ready, (std::vector<std::size_t>{0}));
  EXPECT_EQ(one.rest, (std::vector<std::size_t>{1, 2}));
  const std::vector<Future<bool>> slow = {driver->remote<&wait_for>({.num_cpus = 0})(folder_ + "/a"),
                                          driver->remote<&wait_for>({.num_cpus = 0})(folder_ + "/b")};
  EXPECT_TRUE(shoal::wait(slow, 1, 20ms).value().ready.empty());  // a timeout of wait() is no error
  touch("b");
  EXPECT_EQ(shoal::wait(slow, 1).value().ready, (std::vector<std::size_t>{1}));
  EXPECT_EQ(shoal::wait(slow, 2, 20ms).value().rest, (std::vector<std::size_t>{0}));
  touch("a");
  EXPECT_EQ(shoal::wait(slow, 2).value().rest.size(), 0u);
  EXPECT_EQ(shoal::wait(slow, 3).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(shoal::wait(std::vector{slow[0], slow[0]}, 1).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(driver->kill(quick));
}

// ---- placement groups and chosen nodes ----

TEST_F(CppGuaranteesTest, APlacementGroupHoldsItsActors) {
  const auto group = driver->placement_group({{{"CPU", 1}}, {{"CPU", 1}}}).value();
  ASSERT_TRUE(group.ready.get());
  const auto c = driver->spawn<Counter>({.num_cpus = 1, .where = {.group = group.id, .bundle = 1}}, 1).value();
  EXPECT_EQ(c.call(&Counter::add, 1).get().value(), 2);
  const Error full = driver->spawn<Counter>({.num_cpus = 1, .where = {.group = group.id, .bundle = 1}}, 1)
                         .value()
                         .call(&Counter::add, 1)
                         .get(100ms)
                         .error();
  EXPECT_EQ(full.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(driver->remote<&square>({.where = {.group = group.id}})(3).get().value(), 9);
  ASSERT_TRUE(driver->remove(group));
  dies(c);
  const auto never = driver->placement_group({{{"CPU", 1000}}}).value();
  EXPECT_EQ(never.ready.get(100ms).error().code(), Code::kDeadlineExceeded);
  ASSERT_TRUE(driver->remove(never));
}

TEST_F(CppGuaranteesTest, NodeAffinityPlacesAnActorOnItsNode) {
  const auto c = driver->spawn<Counter>({.where = {.node = driver->node()}}, 1).value();
  EXPECT_EQ(c.call(&Counter::add, 1).get().value(), 2);
  const auto nowhere = driver->spawn<Counter>({.where = {.node = shoal::NodeId{1}, .soft = true}}, 1).value();
  EXPECT_EQ(nowhere.call(&Counter::add, 1).get().value(), 2);
  for (const auto& h : {c, nowhere}) ASSERT_TRUE(driver->kill(h));
}

}  // namespace

int main(int argc, char** argv) {
  using All = shoal::Functions<&mean, &square, &length, &where, &filled, &divided, &survives, &wait_for>;
  return run_program<Counter, Meeting, Other, All>(argc, argv);
}
