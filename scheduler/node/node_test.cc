#include "scheduler/node/node.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "actors/session/folder/open_network.h"
#include "runtime/shm/memory.h"
#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {
namespace node_test {

using namespace std::chrono_literals;
using actors::CountObjects;
using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::ObjectKey;
using actors::ObjectRef;
using actors::to_bytes;
using runtime::Endpoint;
using runtime::Message;
using runtime::Peer;

constexpr JobId kJob{1};

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

// A launcher that starts nothing: processes of the node attach by themselves. The test answers requests to start, and ends processes.
class Watches final : public Launcher {
 public:
  void set_events(Events* to) override { events = to; }
  void start(const actors::StartWorker&, const Env&, std::function<void(Result<pid_t>)> started) override { starting = std::move(started); }
  void drain_output() override {}
  void end_lines(WorkerId worker) override { ended_lines.push_back(worker); }
  void signal(WorkerId worker, int signal) override { signalled_workers[worker] = signal; }
  void signal_process(pid_t pid, int signal) override { signalled[pid] = signal; }
  std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone) override {
    watched[pid] = std::move(gone);
    return std::make_shared<int>(0);
  }
  void retire_torch() override { ++torch_retired; }
  Result<std::uint16_t> free_port() override { return fail(unimplemented("there are no ports here")); }

  std::function<void(Result<pid_t>)> starting;  // answers the last request to start
  std::map<pid_t, int> signalled;
  std::vector<WorkerId> ended_lines;
  int torch_retired = 0;
  std::map<WorkerId, int> signalled_workers;
  Events* events = nullptr;
  std::map<pid_t, std::function<void()>> watched;
};

// A fake head, which registers the node and records its reports.
class Head final : public runtime::PeerHandler {
 public:
  explicit Head(runtime::SimWorld& world, const std::string& host = "head") : network_(world.fabric().attach(host, 1)) {
    listener_ = *network_->listen(Endpoint::tcp(host, 1), [this, &world](std::unique_ptr<runtime::Connection> c) {
      node = std::make_unique<Peer>(std::move(c), world.clock(), *this);
    });
  }
  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    EXPECT_EQ(request.method, number(Method::kRegisterNode));
    if (refuses) return responder.fail(resource_exhausted("no room for this node"));
    responder.reply(body(to_bytes(actors::RegisteredNode{})));
  }
  void on_notice(Peer&, runtime::Request notice) override {
    if (notice.method != number(Method::kWorkerUpdate)) return;
    const auto update = *from_bytes<actors::WorkerUpdate>(notice.message.body);
    states[update.worker].push_back(update.state);
    if (update.state == actors::WorkerState::kExited) exits[update.worker] = update;
  }
  void on_closed(Peer&, const Error&) override {}

  bool refuses = false;
  std::unique_ptr<Peer> node;
  std::map<WorkerId, actors::WorkerUpdate> exits;
  std::map<WorkerId, std::vector<actors::WorkerState>> states;

 private:
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<runtime::Listener> listener_;
};

// A process on the node's host, played by the test.
class Process final : public runtime::PeerHandler {
 public:
  Process(runtime::SimWorld& world, pid_t pid, const Endpoint& node, WorkerId worker = {})
      : pid(pid), network_(world.fabric().attach("host", pid)) {
    network_->connect(node, runtime::Role::kClient, 5s, [this, &world, worker](auto c) {
      peer = std::make_unique<Peer>(*std::move(c), world.clock(), *this);
      peer->call(number(Method::kAttach), body(to_bytes(actors::Attach{worker, kJob, "process"})), Peer::kNoTimeout,
                 [this](Result<Message> r) { id = from_bytes<actors::Attached>(r.value().body).value().worker; });
    });
    EXPECT_TRUE(world.run_until([this] { return static_cast<bool>(id); }, 10s));
  }
  void on_request(Peer&, runtime::Request, runtime::Responder) override {}
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer&, const Error&) override {}

  void put(ObjectId object) {
    Message m = body(to_bytes(ObjectRef{object, kJob, 0, {}, {}, {}}));
    m.fds.push_back(runtime::make_memory("object", 100).value());
    EXPECT_TRUE(peer->notify(number(Method::kPutObject), std::move(m)));
  }
  void count(ObjectId object, WorkerId holder) {
    EXPECT_TRUE(peer->notify(number(Method::kCountObjects), body(to_bytes(CountObjects{{{ObjectKey{kJob, object, {}}, holder, 1}}, 0}))));
  }

  const pid_t pid;
  WorkerId id;
  std::unique_ptr<Peer> peer;

 private:
  std::unique_ptr<runtime::SimNetwork> network_;
};

class NodeTest : public testing::Test {
 protected:
  explicit NodeTest(const runtime::SimWorld::Options& world = {}) : world_(world) { EXPECT_TRUE(node_.start()); }

  // The reason of the error that get() returned, or "" on success.
  std::string get(Process& process, ObjectId object, WorkerId owner, const std::function<void()>& meanwhile = [] {}) {
    std::optional<std::string> said;
    process.peer->call(number(Method::kGetObject), body(to_bytes(ObjectRef{object, kJob, 0, owner, {}, {}})), Peer::kNoTimeout,
                       [&](Result<Message> r) { said = r ? "" : r.error().reason(); });
    meanwhile();
    EXPECT_TRUE(world_.run_until([&] { return said.has_value(); }, 10s));
    return said.value_or("no answer");
  }
  // Waits until the node has read all that the process has sent.
  void received(Process& process) {
    bool answered = false;
    process.peer->call(number(Method::kSyncLogs), {}, Peer::kNoTimeout, [&](Result<Message>) { answered = true; });
    EXPECT_TRUE(world_.run_until([&] { return answered; }, 10s));
  }

  // Starts a worker, as the head does. Its process has the pid.
  void start(WorkerId worker, JobId job, pid_t pid, bool torch = false) {
    ASSERT_TRUE(world_.run_until([&] { return head_.node != nullptr; }, 10s));
    actors::StartWorker spec;
    spec.worker = worker;
    spec.job = job;
    spec.label = "Counter";
    spec.launch.torch = torch;
    launcher_.starting = nullptr;
    head_.node->call(number(Method::kStartWorker), body(to_bytes(spec)), Peer::kNoTimeout, [](const Result<Message>&) {});
    ASSERT_TRUE(world_.run_until([&] { return launcher_.starting != nullptr; }, 10s));
    launcher_.starting(pid);
  }

  static Node::Options options() {
    Node::Options o;
    o.head.endpoints = {Endpoint::tcp("head", 1)};
    o.listen = Endpoint::unix_at("node");
    o.memory.spare_bytes = 0;
    o.workers.max_attached = 2;
    o.logs.folder = testing::TempDir();
    return o;
  }
  Node::Options with_stops() {
    Node::Options o = options();
    o.workers.find_stopped = [this](const std::vector<pid_t>& pids, const Workers::Options::FoundStopped& then) {
      std::set<pid_t> found;
      for (const pid_t pid : pids) {
        if (stopped_.contains(pid)) found.insert(pid);
      }
      then(found);
    };
    return o;
  }
  runtime::SimWorld world_;
  std::set<pid_t> stopped_;  // pids of processes that a signal has stopped
  Head head_{world_};
  std::unique_ptr<runtime::SimNetwork> network_ = world_.fabric().attach("host", 10);
  Watches launcher_;
  Node node_{world_.clock(), world_.random(), *network_, launcher_, runtime::make_null_log(), with_stops()};
};

TEST_F(NodeTest, ReportsBeforeADeathCountAlsoIfTheDeathArrivesFirst) {
  Process dead(world_, 11, node_.endpoint()), other(world_, 12, node_.endpoint());
  constexpr ObjectId kGiven{5}, kAwaited{6}, kOwn{7};
  for (const ObjectId object : {kGiven, kOwn}) {
    dead.put(object);
    dead.count(object, dead.id);
  }
  received(dead);
  const auto dies = [&] { launcher_.watched.at(dead.pid)(); };
  const auto reported_cause = [&] {
    // Meanwhile the get of an absent object waits.
    world_.run_for(1s);
    dead.count(kGiven, other.id);
    dead.put(kAwaited);
    dead.count(kAwaited, other.id);
    dies();
  };
  EXPECT_EQ(get(other, kAwaited, dead.id, reported_cause), "");
  EXPECT_EQ(get(other, kGiven, dead.id), "");
  EXPECT_EQ(get(other, kOwn, dead.id), "ObjectFreed");
}

TEST_F(NodeTest, AConnectionAttachesOneProcessAndAProcessFewOfThem) {
  Process process(world_, 11, node_.endpoint());
  std::optional<Result<Message>> again;
  process.peer->call(number(Method::kAttach), body(to_bytes(actors::Attach{{}, kJob, "process"})), Peer::kNoTimeout,
                     [&](Result<Message> r) { again = std::move(r); });
  ASSERT_TRUE(world_.run_until([&] { return again.has_value(); }, 10s));
  ASSERT_FALSE(*again);
  EXPECT_NE(again->error().message().find("attached process"), std::string::npos);
  const Process second(world_, 11, node_.endpoint()), other(world_, 12, node_.endpoint());
  EXPECT_NE(second.id, process.id);
  const auto network = world_.fabric().attach("host", 11);
  std::unique_ptr<runtime::Connection> connection;
  network->connect(node_.endpoint(), runtime::Role::kClient, 5s, [&](auto c) { connection = *std::move(c); });
  ASSERT_TRUE(world_.run_until([&] { return connection != nullptr; }, 10s));
  Peer third(std::move(connection), world_.clock(), process);
  std::optional<std::string> reason;
  third.call(number(Method::kAttach), body(to_bytes(actors::Attach{{}, kJob, "process"})), Peer::kNoTimeout,
             [&](Result<Message> r) { reason = r ? "" : r.error().reason(); });
  ASSERT_TRUE(world_.run_until([&] { return reason.has_value(); }, 10s));
  EXPECT_EQ(*reason, "TooManyAttached");
}

TEST_F(NodeTest, ASessionEndsWithItsJobAndItsConnectionThoughItsProcessLives) {
  constexpr pid_t kPid = 11;
  ASSERT_TRUE(world_.run_until([&] { return head_.node != nullptr; }, 10s));
  for (int i = 0; i < 3; ++i) {  // more sessions than one process may have at a time
    std::vector<WorkerId> ids;
    {
      const Process last(world_, kPid, node_.endpoint());
      {
        const Process first(world_, kPid, node_.endpoint());
        ids = {first.id, last.id};
      }
      bool ended = false;
      head_.node->call(number(Method::kEndJob), body(to_bytes(actors::JobRef{kJob})), Peer::kNoTimeout,
                       [&](const Result<Message>&) { ended = true; });
      ASSERT_TRUE(world_.run_until([&] { return ended; }, 10s));
      EXPECT_FALSE(head_.exits.contains(last.id));
    }
    ASSERT_TRUE(world_.run_until([&] { return head_.exits.contains(ids[0]) && head_.exits.contains(ids[1]); }, 10s));
    EXPECT_EQ(head_.exits[ids[0]].shell_code, 0);
  }
}

// The end of a dead process's connection may be read with its last messages, while the node handles the death.
TEST_F(NodeTest, ASessionWhoseConnectionEndsWhileItsDeathIsHandledEndsOnce) {
  constexpr pid_t kPid = 11;
  ASSERT_TRUE(world_.run_until([&] { return head_.node != nullptr; }, 10s));
  WorkerId id;
  {
    const Process process(world_, kPid, node_.endpoint());
    id = process.id;
    bool ended = false;
    head_.node->call(number(Method::kEndJob), body(to_bytes(actors::JobRef{kJob})), Peer::kNoTimeout,
                     [&](const Result<Message>&) { ended = true; });
    ASSERT_TRUE(world_.run_until([&] { return ended; }, 10s));
  }
  launcher_.watched.at(kPid)();
  ASSERT_TRUE(world_.run_until([&] { return head_.exits.contains(id); }, 10s));
  ASSERT_TRUE(head_.exits[id].cause);
  EXPECT_EQ(head_.exits[id].cause->reason(), "JobEnded");
}

// The launcher may lose a worker that it has started, for instance when the zygote dies before it reports the pid.
TEST_F(NodeTest, AnAttachedWorkerWhoseStartFailsIsKilledAndItsEndReported) {
  constexpr WorkerId kWorker{21};
  ASSERT_TRUE(world_.run_until([&] { return head_.node != nullptr; }, 10s));
  actors::StartWorker spec;
  spec.worker = kWorker;
  spec.job = kJob;
  std::optional<Result<Message>> started;
  head_.node->call(number(Method::kStartWorker), body(to_bytes(spec)), Peer::kNoTimeout,
                   [&](Result<Message> r) { started = std::move(r); });
  ASSERT_TRUE(world_.run_until([&] { return launcher_.starting != nullptr; }, 10s));
  const Process process(world_, 11, node_.endpoint(), kWorker);
  ASSERT_EQ(process.id, kWorker);

  launcher_.starting(fail(unavailable("the zygote is gone")));
  EXPECT_EQ(launcher_.signalled, (std::map<pid_t, int>{{11, SIGKILL}}));
  world_.run_for(1s);
  EXPECT_FALSE(started);  // the worker still runs, and holds its devices
  EXPECT_TRUE(head_.exits.empty());
  launcher_.watched.at(11)();
  ASSERT_TRUE(world_.run_until([&] { return head_.exits.contains(kWorker) && started.has_value(); }, 10s));
  EXPECT_FALSE(*started);
  EXPECT_EQ(head_.exits.at(kWorker).shell_code, 126);
  EXPECT_EQ(head_.exits.at(kWorker).cause->message(), "the zygote is gone");
}

// A driver that leaves asks for its job's unfinished lines. Those of other jobs' workers stay unfinished.
TEST_F(NodeTest, UnfinishedLinesAreEndedForTheJobThatLeaves) {
  constexpr WorkerId kOwn{21}, kOther{22};
  start(kOwn, kJob, 11);
  start(kOther, JobId{2}, 12);
  Process driver(world_, 13, node_.endpoint());
  received(driver);
  EXPECT_TRUE(launcher_.ended_lines.empty());
  bool answered = false;
  driver.peer->call(number(Method::kSyncLogs), body(to_bytes(actors::JobRef{kJob})), Peer::kNoTimeout,
                    [&](Result<Message> r) { answered = r.has_value(); });
  EXPECT_TRUE(world_.run_until([&] { return answered; }, 10s));
  EXPECT_EQ(launcher_.ended_lines, std::vector<WorkerId>{kOwn});
}

TEST_F(NodeTest, TorchStaysForTheNextJob) {
  const auto end = [&](JobId job) {
    head_.node->call(number(Method::kEndJob), body(to_bytes(actors::JobRef{job})), Peer::kNoTimeout, [](const Result<Message>&) {});
  };
  start(WorkerId{1}, JobId{1}, 11, true);
  end(JobId{1});
  world_.run_for(59s);
  start(WorkerId{2}, JobId{2}, 12, true);
  world_.run_for(2s);
  EXPECT_EQ(launcher_.torch_retired, 0);
  end(JobId{2});
  world_.run_for(59s);
  EXPECT_EQ(launcher_.torch_retired, 0);
  world_.run_for(2s);
  EXPECT_EQ(launcher_.torch_retired, 1);
}

TEST_F(NodeTest, AStoppedWorkerIsReportedAndEndedWithItsCause) {
  using actors::WorkerState;
  constexpr WorkerId kWorker{21}, kOther{22};
  start(kWorker, kJob, 11);
  start(kOther, kJob, 12);
  const auto is = [&](WorkerState state) {
    return [&, state] { return !head_.states[kWorker].empty() && head_.states[kWorker].back() == state; };
  };
  stopped_ = {11};
  ASSERT_TRUE(world_.run_until(is(WorkerState::kStopped), 30s));
  stopped_ = {};
  ASSERT_TRUE(world_.run_until(is(WorkerState::kRunning), 30s));
  EXPECT_TRUE(launcher_.signalled_workers.empty());
  stopped_ = {11};
  ASSERT_TRUE(world_.run_until([&] { return !launcher_.signalled_workers.empty(); }, 5min));
  EXPECT_EQ(launcher_.signalled_workers, (std::map<WorkerId, int>{{kWorker, SIGKILL}}));
  launcher_.events->exited(kWorker, {.signal = SIGKILL});
  ASSERT_TRUE(world_.run_until([&] { return head_.exits.contains(kWorker); }, 10s));
  const auto& cause = head_.exits.at(kWorker).cause;
  EXPECT_EQ(cause->reason(), "WorkerStopped");
  EXPECT_NE(cause->message().find("actor Counter (pid 11) was ended by its node, because a signal (SIGSTOP)"), std::string::npos);
}

// A node whose head is of the release before.
class OldHeadTest : public NodeTest {
 protected:
  OldHeadTest() : NodeTest({.network = {.versions = {1, 1}}}) {}
};

TEST_F(OldHeadTest, AStoppedWorkerIsReportedAsOneThatRuns) {
  constexpr WorkerId kWorker{21};
  start(kWorker, kJob, 11);
  const auto num_reports = [&] { return head_.states[kWorker].size(); };
  world_.run_for(10s);  // so that all reports of the worker's start arrive
  const std::size_t before = num_reports();
  stopped_ = {11};
  ASSERT_TRUE(world_.run_until([&] { return num_reports() > before; }, 30s));
  EXPECT_EQ(head_.states[kWorker].back(), actors::WorkerState::kRunning);
}

TEST_F(NodeTest, ANodeWithoutAHeadEndsAndSaysWhy) {
  Node::Options o = options();
  std::string orphaned, ended;
  o.listen = Endpoint::unix_at("other");
  o.head.endpoints = {Endpoint::tcp("nowhere", 1)};
  o.head.absence.unreached = 10min;
  o.events.on_orphaned = [&](const std::string& why) { orphaned = why; };
  o.events.on_end = [&](const std::string& why) { ended = why; };
  const auto network = world_.fabric().attach("host", 20);
  Watches launcher;
  Node node(world_.clock(), world_.random(), *network, launcher, runtime::make_null_log(), o);
  ASSERT_TRUE(node.start());
  world_.run_for(9min);
  EXPECT_EQ(orphaned, "");
  ASSERT_TRUE(world_.run_until([&] { return !ended.empty(); }, 2min));
  EXPECT_EQ(ended, orphaned);
  EXPECT_NE(ended.find("no head has answered at nowhere:1 for 600 s"), std::string::npos) << ended;
}

TEST_F(NodeTest, AHeadThatAnswersWithAnErrorIsNotGone) {
  auto refusing = std::make_unique<Head>(world_, "refusing");
  refusing->refuses = true;
  Node::Options o = options();
  std::string ended;
  o.listen = Endpoint::unix_at("other");
  o.head.endpoints = {Endpoint::tcp("refusing", 1)};
  o.head.absence.unreached = 10s;
  o.events.on_end = [&](const std::string& why) { ended = why; };
  const auto network = world_.fabric().attach("host", 20);
  Watches launcher;
  Node node(world_.clock(), world_.random(), *network, launcher, runtime::make_null_log(), o);
  ASSERT_TRUE(node.start());
  world_.run_for(30s);
  EXPECT_EQ(ended, "");
  refusing.reset();
  EXPECT_TRUE(world_.run_until([&] { return !ended.empty(); }, 30s));
}

TEST_F(NodeTest, AWorkerThatBecameReadyAroundAStopRunsAfterIt) {
  using actors::WorkerState;
  constexpr WorkerId kWorker{21};
  start(kWorker, kJob, 11);
  stopped_ = {11};
  const auto is = [&](WorkerState state) {
    return [&, state] { return !head_.states[kWorker].empty() && head_.states[kWorker].back() == state; };
  };
  ASSERT_TRUE(world_.run_until(is(WorkerState::kStopped), 30s));
  stopped_ = {};  // the worker continues, and reports itself before the next look
  Process process(world_, 11, node_.endpoint(), kWorker);
  actors::WorkerUpdate ready;
  ready.worker = kWorker;
  ready.endpoint = "unix:@worker";
  bool answered = false;
  process.peer->call(number(Method::kWorkerReady), body(to_bytes(ready)), Peer::kNoTimeout,
                     [&](Result<Message> r) { answered = r.has_value(); });
  ASSERT_TRUE(world_.run_until([&] { return answered; }, 1s));
  world_.run_for(5s);
  EXPECT_EQ(head_.states[kWorker].back(), WorkerState::kRunning);
}

// A process refuses larger messages of its peers, so a follower would lose its connection.
TEST_F(NodeTest, ALogsLinesSoFarFitTheMessageThatHasThem) {
  EXPECT_GE(actors::max_payload_bytes(runtime::FrameKind::kNotice, number(Method::kLogLines)), WorkerLogs::kSoFarBytes);
}

TEST_F(NodeTest, AReadOfALogIsBounded) {
  constexpr std::uintmax_t kMost = 32u << 20;
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "large.log";
  std::ofstream(file).put('x');
  std::filesystem::resize_file(file, kMost + 1);  // sparse
  Process process(world_, 11, node_.endpoint());
  std::optional<std::size_t> read;
  process.peer->call(number(Method::kReadLogFile), body(to_bytes(actors::ReadLogFile{"large.log", ~std::uint64_t{0}})), Peer::kNoTimeout,
                     [&](Result<Message> r) { read = r.value().payload.size(); });
  ASSERT_TRUE(world_.run_until([&] { return read.has_value(); }, 30s));
  EXPECT_EQ(read, kMost);
  std::filesystem::remove(file);
}

}  // namespace node_test
}  // namespace shoal::scheduler
