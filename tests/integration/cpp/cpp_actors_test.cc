// The C++ API on a real cluster. This program is the driver and its workers.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/api/build_id.h"
#include "actors/api/shoal.h"
#include "tests/integration/cpp/program.h"

namespace {

using namespace std::chrono_literals;
using shoal::Code;
using shoal::Error;
using shoal::Handle;
using shoal::Result;

class Recorder {
 public:
  explicit Recorder(std::string name) : name_(std::move(name)) {
    if (name_ == "refused") throw std::runtime_error("this name is refused");
  }
  void note(int n) { seen_.push_back(n); }
  std::vector<int> seen() const { return seen_; }
  std::string name() const { return name_; }
  pid_t pid() const { return getpid(); }
  bool main_thread() const { return getpid() == gettid(); }
  Result<int> divide(int a, int b) {
    if (b == 0) return shoal::fail(shoal::invalid_argument("division by zero").with_reason("Zero").with_hint("divide by something"));
    return a / b;
  }
  int throws() { throw std::runtime_error("thrown by the method"); }
  shoal::Bytes reversed(std::span<const std::byte> bytes) {
    return [&] {
      shoal::Bytes out(bytes.size());
      std::reverse_copy(bytes.begin(), bytes.end(), out.data());
      return out;
    }();
  }
  void sleep(int milliseconds) {
    std::fprintf(stderr, "about to sleep\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
  void exit_with(int code) {
    std::fprintf(stderr, "the last word\n");
    std::exit(code);
  }
  std::string environment(const std::string& name) const {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? value : "(unset)";
  }
  static constexpr auto methods = shoal::methods(shoal::constructor<std::string>, &Recorder::note, &Recorder::seen, &Recorder::name,
                                                 &Recorder::pid, &Recorder::main_thread, &Recorder::divide, &Recorder::throws,
                                                 &Recorder::reversed, &Recorder::sleep, &Recorder::exit_with, &Recorder::environment);

 private:
  std::string name_;
  std::vector<int> seen_;
};

// An actor with a rank that calls other actors.
class Member {
 public:
  Member(shoal::Place place, int base) : place_(place), base_(base) {}
  int rank_plus(int n) const { return base_ + place_.rank.value + n; }
  int unlisted(int n) const { return n; }
  int world_size() const { return place_.world_size; }
  Result<int> fail_on(int rank) const {
    if (rank == place_.rank.value) return shoal::fail(shoal::data_loss("bad shard"));
    return rank;
  }
  Result<void> wait_unless(int rank) const {
    if (rank == place_.rank.value) return shoal::fail(shoal::data_loss("bad shard"));
    std::this_thread::sleep_for(20s);
    return {};
  }
  Result<int> ask(shoal::ActorId other, int a, int b) {
    SHOAL_TRY(const auto recorder, place_.context->handle<Recorder>(other));
    return recorder.call(&Recorder::divide, a, b).get();
  }
  static constexpr auto methods = shoal::methods(shoal::constructor<shoal::Place, int>, &Member::rank_plus, &Member::world_size,
                                                 &Member::fail_on, &Member::wait_unless, &Member::ask);

 private:
  shoal::Place place_;
  int base_;
};

class NeverListed {
 public:
  void f() {}
  static constexpr auto methods = shoal::methods(&NeverListed::f);
};

class CppActorsTest : public testing::Test {
 protected:
  Handle<Recorder> recorder(const std::string& name = "r") { return driver->spawn<Recorder>({}, name).value(); }
};

// ---- calls ----

TEST_F(CppActorsTest, CallsOfOneCallerRunInOrder) {
  const auto r = recorder();
  std::vector<int> expected;
  for (int i = 0; i < 1000; ++i) {
    (void)r.call(&Recorder::note, i);  // the first of these calls are made before the actor's process exists
    expected.push_back(i);
  }
  EXPECT_EQ(r.call(&Recorder::seen).get().value(), expected);
  EXPECT_TRUE(r.call(&Recorder::main_thread).get().value());
}

TEST_F(CppActorsTest, ArgumentsAndResultsRoundTrip) {
  const auto r = recorder("a name");
  EXPECT_TRUE(r.constructed().get());
  EXPECT_EQ(r.call(&Recorder::name).get().value(), "a name");
  EXPECT_EQ(r.call(&Recorder::divide, 7, 2).get().value(), 3);
  EXPECT_NE(r.call(&Recorder::pid).get().value(), getpid());
  for (const std::size_t size : {0u, 5u, 1'000'000u}) {  // in the frame, and in shared memory
    shoal::Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes.data()[i] = static_cast<std::byte>(i * 7);
    const auto back = r.call(&Recorder::reversed, bytes).get().value();
    ASSERT_EQ(back.size(), size);
    EXPECT_TRUE(std::equal(back.data(), back.data() + size, std::make_reverse_iterator(bytes.data() + size)));
  }
}

TEST_F(CppActorsTest, OptionsReachTheProcess) {
  shoal::ActorOptions options;
  options.env = {{"SHOAL_TEST_COLOUR", "green"}};
  const auto r = driver->spawn<Recorder>(options, "r").value();
  EXPECT_EQ(r.call(&Recorder::environment, "SHOAL_TEST_COLOUR").get().value(), "green");
  // The variable is for the worker itself: it removes SHOAL_BUILD_ID, lest a program that it starts takes itself for a worker.
  EXPECT_EQ(r.call(&Recorder::environment, "SHOAL_BUILD_ID").get().value(), "(unset)");
}

TEST_F(CppActorsTest, ATimeoutLeavesTheCallAlone) {
  const auto r = recorder();
  const auto slow = r.call(&Recorder::sleep, 300);
  const Error e = slow.get(20ms).error();
  EXPECT_EQ(e.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(e.context(), (std::vector<std::string>{"method sleep", "actor Recorder(" + to_string(r.id()) + ")"}));
  EXPECT_TRUE(slow.get());
}

// ---- errors ----

TEST_F(CppActorsTest, AnErrorHasItsCauseAndItsContext) {
  const auto r = recorder();
  const Error e = r.call(&Recorder::divide, 1, 0).get().error();
  EXPECT_EQ(e.to_string(), "error[InvalidArgument/Zero]: division by zero\n  in: method divide, actor Recorder(" + to_string(r.id()) +
                               ")\n  hint: divide by something");
  EXPECT_EQ(r.call(&Recorder::divide, 4, 2).get().value(), 2);  // the actor lives on after errors and exceptions
}

TEST_F(CppActorsTest, AnErrorOfAnActorCalledByAnActorKeepsTheFirstCauseFirst) {
  const auto r = recorder();
  const auto m = driver->spawn<Member>({}, 0).value();
  EXPECT_EQ(m.call(&Member::ask, r.id(), 6, 2).get().value(), 3);
  const Error e = m.call(&Member::ask, r.id(), 6, 0).get().error();
  EXPECT_EQ(e.reason(), "Zero");
  EXPECT_EQ(e.context(), (std::vector<std::string>{"method divide", "actor Recorder(" + to_string(r.id()) + ")", "method ask",
                                                   "actor Member(" + to_string(m.id()) + ")"}));
}

TEST_F(CppActorsTest, AThrownExceptionIsAnErrorAndTheActorLives) {
  const auto r = recorder();
  const Error e = r.call(&Recorder::throws).get().error();
  EXPECT_EQ(e.reason(), "MethodThrew");
  EXPECT_EQ(e.message(), "the method threw: thrown by the method");
  EXPECT_EQ(r.call(&Recorder::name).get().value(), "r");
}

TEST_F(CppActorsTest, InvalidCallsFailInTheirFuture) {
  const auto r = recorder();
  // Member::unlisted has the signature of a listed method, but is not listed.
  const auto m = driver->spawn<Member>({}, 0).value();
  EXPECT_EQ(m.call(&Member::unlisted, 1).get().error().code(), Code::kInvalidArgument);
  EXPECT_EQ(driver->spawn<NeverListed>({}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(driver->spawn_mesh<Member>(0, {}, 0).error().code(), Code::kInvalidArgument);
  const auto foreign = driver->handle<Member>(r.id()).value();
  EXPECT_EQ(foreign.call(&Member::world_size).get().error().code(), Code::kNotFound);  // the actor is a Recorder
}

// ---- deaths ----

TEST_F(CppActorsTest, AKilledProcessFailsPendingCallsInLessThanASecond) {
  const auto r = recorder();
  const pid_t pid = r.call(&Recorder::pid).get().value();
  const auto running = r.call(&Recorder::sleep, 60'000);
  const auto queued = r.call(&Recorder::name);
  EXPECT_FALSE(running.get(200ms));
  const auto start = std::chrono::steady_clock::now();
  kill(pid, SIGKILL);
  const Error e = running.get(10s).error();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  EXPECT_EQ(e.code(), Code::kUnavailable);
  EXPECT_EQ(e.reason(), "ActorDied");
  EXPECT_NE(e.message().find("was killed by SIGKILL"), std::string::npos) << e.to_string();
  EXPECT_NE(e.message().find("about to sleep"), std::string::npos) << e.to_string();  // the error has the last lines that the actor printed
  EXPECT_EQ(e.context(), (std::vector<std::string>{"actor Recorder(" + to_string(r.id()) + ")", "method sleep"}));
  EXPECT_EQ(queued.get(1s).error().reason(), "ActorDied");
  EXPECT_EQ(r.call(&Recorder::name).get(1s).error().reason(), "ActorDied");
}

TEST_F(CppActorsTest, AnExitHasItsCodeAndItsLastLines) {
  const auto r = recorder();
  const Error e = r.call(&Recorder::exit_with, 7).get(10s).error();
  EXPECT_EQ(e.reason(), "ActorDied");
  EXPECT_NE(e.message().find("exited with code 7"), std::string::npos) << e.to_string();
  EXPECT_NE(e.message().find("the last word"), std::string::npos) << e.to_string();
}

TEST_F(CppActorsTest, KillEndsAnActor) {
  const auto r = recorder();
  const pid_t pid = r.call(&Recorder::pid).get().value();
  const auto running = r.call(&Recorder::sleep, 60'000);
  ASSERT_TRUE(driver->kill(r));
  EXPECT_EQ(running.get(1s).error().reason(), "ActorDied");
  for (int i = 0; i < 500 && kill(pid, 0) == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(CppActorsTest, AThrowingConstructorLeavesADeadActorWithTheCause) {
  const auto r = recorder("refused");
  const auto call = r.call(&Recorder::name);
  const Error e = r.constructed().get(10s).error();
  EXPECT_NE(e.message().find("this name is refused"), std::string::npos) << e.to_string();
  const Error later = call.get(10s).error();
  EXPECT_EQ(later.reason(), "ActorDied");
  EXPECT_NE(later.message().find("exited with code 1"), std::string::npos) << later.to_string();
  EXPECT_NE(later.message().find("this name is refused"), std::string::npos) << later.to_string();
}

// ---- meshes ----

TEST_F(CppActorsTest, AMeshAnswersByRank) {
  const auto mesh = driver->spawn_mesh<Member>(4, {.num_cpus = 1}, 100).value();
  ASSERT_EQ(mesh.size(), 4u);
  EXPECT_EQ(mesh.call_all(&Member::rank_plus, 10).get().value(), (std::vector<int>{110, 111, 112, 113}));
  EXPECT_EQ(mesh.call_all(&Member::world_size).get().value(), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(mesh[2].call(&Member::rank_plus, 0).get().value(), 102);
  EXPECT_EQ(mesh.slice(1, 2).call_all(&Member::rank_plus, 0).get().value(), (std::vector<int>{101, 102}));
  EXPECT_TRUE(mesh.slice(1, 0).call_all(&Member::rank_plus, 0).get().value().empty());
  for (const auto& m : mesh) ASSERT_TRUE(driver->kill(m));
}

TEST_F(CppActorsTest, AFailingRankIsNamedWithoutWaitingForTheOthers) {
  const auto mesh = driver->spawn_mesh<Member>(2, {}, 0).value();
  const Error e = mesh.call_all(&Member::fail_on, 1).get().error();
  EXPECT_EQ(e.message(), "bad shard");
  EXPECT_EQ(e.context(), (std::vector<std::string>{"method fail_on", "actor Member(" + to_string(mesh[1].id()) + ")", "rank 1"}));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(mesh.call_all(&Member::wait_unless, 1).get().error().context().back(), "rank 1");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  const Error late = mesh.slice(0, 1).call_all(&Member::world_size).get(20ms).error();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.context().back(), "rank 0");
  for (const auto& m : mesh) ASSERT_TRUE(driver->kill(m));
}

TEST_F(CppActorsTest, AMeshIsPlacedCompletelyOrNotAtAll) {
  const Error e = driver->spawn_mesh<Member>(5, {.num_cpus = 1, .refuse_infeasible = true}, 0).error();
  EXPECT_EQ(e.code(), Code::kResourceExhausted) << e.to_string();
  const auto waits = driver->spawn_mesh<Member>(5, {.num_cpus = 1}, 0).value();
  EXPECT_EQ(waits.call_all(&Member::world_size).get(300ms).error().code(), Code::kDeadlineExceeded);
  const auto rows = driver->session().cluster().list(shoal::actors::ListRequest::What::kActors).value();
  for (const auto& row : rows.actors) {
    for (const auto& m : waits) EXPECT_TRUE(row.id != m.id() || row.pid == 0) << "rank " << row.rank << " was placed alone";
  }
  ASSERT_TRUE(driver->kill(waits[0]));  // kills the whole gang, which waits for resources
}

// ---- coroutines ----

shoal::Task<int> sum(shoal::Mesh<Member> mesh) {
  int total = 0;
  for (const auto& member : mesh) {
    const Result<int> one = co_await member.call(&Member::rank_plus, 1).async();
    if (!one) co_return shoal::fail(one.error());
    total += *one;
  }
  co_return total;
}

shoal::Task<int> divide(Handle<Recorder> r, int a, int b) {
  SHOAL_CO_TRY(const int first, co_await r.call(&Recorder::divide, a, b).async());
  SHOAL_CO_TRY(const int again, co_await divide(r, first, 1));  // with b == 0 this line is not reached
  co_return again;
}

shoal::Task<void> sleeps(Handle<Recorder> r, bool* went_on) {
  const auto slept = co_await r.call(&Recorder::sleep, 500).async();
  if (slept || slept.error().code() != Code::kCancelled) *went_on = true;
  (void)co_await r.call(&Recorder::name).async();  // a cancelled coroutine never continues behind an await
  *went_on = true;
  co_return slept;
}

shoal::Task<void> throws(Handle<Recorder> r) {
  (void)co_await r.call(&Recorder::name).async();
  throw std::runtime_error("thrown by the coroutine");
}

shoal::Task<std::string> blocks(Handle<Recorder> r) {
  const auto first = r.call(&Recorder::name);
  // get() may block here, on the user's thread; on the loop's thread it may not
  SHOAL_CO_TRY(const std::string got, r.call(&Recorder::name).get());
  SHOAL_CO_TRY(const std::string awaited, co_await first.async());  // `first` is ready by now
  co_return got + awaited;
}

TEST_F(CppActorsTest, ACoroutineAwaitsFutures) {
  const auto mesh = driver->spawn_mesh<Member>(3, {}, 10).value();
  EXPECT_EQ(driver->run(sum(mesh)).value(), 10 + 11 + 12 + 3);
  for (const auto& m : mesh) ASSERT_TRUE(driver->kill(m));
  EXPECT_EQ(driver->run(sum(mesh), 10s).error().reason(), "ActorDied");
}

TEST_F(CppActorsTest, ACoroutineGetsErrorsAsValues) {
  const auto r = recorder();
  EXPECT_EQ(driver->run(divide(r, 8, 0)).error().reason(), "Zero");
  EXPECT_EQ(driver->run(throws(r)).error().message(), "the coroutine: thrown by the coroutine");
  EXPECT_EQ(driver->run(blocks(r)).value(), "rr");
}

TEST_F(CppActorsTest, ATimeoutCancelsACoroutine) {
  const auto r = recorder();
  bool went_on = false;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(driver->run(sleeps(r, &went_on), 100ms).error().code(), Code::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 400ms);
  EXPECT_FALSE(went_on);
  EXPECT_EQ(r.call(&Recorder::name).get().value(), "r");  // the actor goes on; the answer to the cancelled call is dropped
}

TEST_F(CppActorsTest, SeveralThreadsCallAndAwait) {
  const auto r = recorder();
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        good += r.call(&Recorder::divide, i, 1).get().value_or(-1) == i;
        good += driver->run(blocks(r)).value_or("") == "rr";
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, 400);
}

// ---- builds ----

TEST_F(CppActorsTest, ARebuiltProgramIsRefused) {
  shoal::actors::SessionOptions session;
  session.credentials.token = shoal::runtime::Token::parse([] {
                                std::ifstream file(driver->session().identity().folder + "/token");
                                return std::string(std::istreambuf_iterator<char>(file), {});
                              }())
                                  .value();
  session.head = driver->session().head().endpoints();
  session.name = "of another build";
  session.print_logs = false;
  shoal::Context::Options options;
  options.program = std::filesystem::read_symlink("/proc/self/exe");
  options.build_id = "0123456789abcdef";
  options.class_names = {std::string(shoal::actors::api::full_class_name<Recorder>())};
  shoal::Context other(shoal::actors::Session::open(session).value(), options);
  const auto r = other.spawn<Recorder>({}, "r").value();
  const Error e = r.call(&Recorder::name).get(10s).error();
  EXPECT_EQ(e.reason(), "ActorDied");
  EXPECT_NE(e.message().find("error[InvalidArgument/BuildMismatch]"), std::string::npos) << e.to_string();
  EXPECT_NE(e.message().find("the driver is build 0123456789abcdef, the file is build " + shoal::actors::api::own_build_id()),
            std::string::npos)
      << e.to_string();
}

}  // namespace

int main(int argc, char** argv) { return run_program<Recorder, Member>(argc, argv); }
