// CPU time of a head of 10,000 nodes: its state machine, the codecs of its messages, and the database of its decisions. Nodes and network
// are absent; only their messages are made. One line of JSON per figure.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/core/check.h"
#include "runtime/loop/random.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using actors::from_bytes;
using actors::to_bytes;
using actors::WorkerState;

constexpr std::uint64_t kNodes = 10'000;
constexpr int kSeconds = 20;  // time for which nodes send heartbeats

double cpu_seconds() {
  rusage r{};
  getrusage(RUSAGE_SELF, &r);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return s(r.ru_utime) + s(r.ru_stime);
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void say(const char* name, double value) { std::printf("{\"name\": \"%s\", \"value\": %.6f}\n", name, value); }

class Bench {
 public:
  explicit Bench(const std::string& database) : store_(open_sqlite_store(database).value()) {}

  void run() {
    say("join 10,000 nodes", timed([&] {
          for (std::uint64_t i = 1; i <= kNodes; ++i) join(i);
        }));
    const JobId job = state_.step(DriverJoined{{"driver", 1, {}}});
    settle();
    say("heartbeats", timed([&] { beats(kSeconds); }) / kSeconds);
    say("place 10,000 actors", timed([&] {
          for (std::uint64_t i = 0; i < kNodes; ++i) ask(gang(job, 1, 4));
          SHOAL_CHECK(started_.size() == kNodes, "not all actors were placed");
        }));
    say("10,000 actors become alive", timed([&] {
          for (const auto& s : std::exchange(started_, {})) becomes_alive(s);
        }));
    say("heartbeats with 10,000 actors", timed([&] { beats(kSeconds); }) / kSeconds);
    // Every node is full, so that these gangs of four wait until nodes join.
    say("ask for 1,000 gangs that wait", timed([&] {
          for (int i = 0; i < 1000; ++i) ask(gang(job, 4, 4));
          SHOAL_CHECK(started_.empty(), "there was room");
        }));
    say("say why 1,000 gangs wait", timed([&] { beats(5); }));
    say("schedule 1,000 gangs", timed([&] {
          for (std::uint64_t i = 1; i <= 4000; ++i) join(kNodes + i);
          SHOAL_CHECK(started_.size() == 4000, "not all gangs were placed");
        }));
    say("resident MiB", resident_mib());
    say("kept rows", static_cast<double>(store_->load().value().size()));
  }

 private:
  double timed(const std::function<void()>& work) {
    const double begin = cpu_seconds();
    work();
    settle();
    return cpu_seconds() - begin;
  }

  // Counts an event. The head commits after every hundredth, as if a hundred events had arrived together.
  void event() {
    if (++events_ % 100 == 0) settle();
  }
  void settle() {
    const auto records = state_.take_changes();
    if (!records.empty()) store_->commit(records, [](Result<void> r) { SHOAL_CHECK(r.has_value(), "a commit failed"); });
    for (auto& action : state_.take_actions()) {
      if (auto* s = std::get_if<StartWorkerOn>(&action)) {
        sent_ += to_bytes(s->message).size();
        started_.push_back(std::move(*s));
      } else if (auto* t = std::get_if<NotifyActor>(&action)) {
        sent_ += to_bytes(t->row).size();
      }
    }
  }

  void join(std::uint64_t id) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.host = "node-" + std::to_string(id);
    n.pid = 100;
    n.endpoint = "10.0.0.1:" + std::to_string(id);
    n.resources = actors::Resources::from_amounts({{"CPU", 4}, {"memory", 64e9}}).value();
    SHOAL_CHECK(state_.step(NodeJoined{from_bytes<actors::RegisterNode>(to_bytes(n)).value()}).has_value(), "a node is refused");
    event();
  }
  void beats(int seconds) {
    for (int tick = 0; tick < 5 * seconds; ++tick) {
      now_ += 200ms;
      unix_ms_ += 200;
      state_.advance(now_, unix_ms_);
      for (const NodeId n : state_.alive_nodes()) {
        if (n.value % 5 == static_cast<std::uint64_t>(tick % 5)) state_.step(NodeBeat{n});
      }
      state_.step(Tick{});
      settle();
    }
  }
  actors::GangSpec gang(JobId job, int count, double cpus) {
    actors::GangSpec g;
    g.id = random_.id<GangId>();
    g.job = job;
    g.launch.kind = actors::Launch::Kind::kPythonWorker;
    g.launch.program = "/usr/bin/python3";
    g.launch.env = {{"PATH", "/usr/bin"}, {"HOME", "/root"}};
    for (int i = 0; i < count; ++i) {
      g.actors.push_back({random_.id<ActorId>(), "Worker", actors::Resources::from_amounts({{"CPU", cpus}}).value()});
    }
    return g;
  }
  void ask(const actors::GangSpec& g) {
    SHOAL_CHECK(state_.step(GangRequested{from_bytes<actors::GangSpec>(to_bytes(g)).value()}).has_value(), "a gang is refused");
    event();
  }
  void becomes_alive(const StartWorkerOn& s) {
    for (const std::string endpoint : {"", "10.0.0.1:7000"}) {
      const actors::WorkerUpdate update{
          s.message.worker, endpoint.empty() ? WorkerState::kStarting : WorkerState::kRunning, 1000, endpoint, 0, {}, s.message.job,
          "actor Worker"};
      state_.step(WorkerUpdated{s.node, from_bytes<actors::WorkerUpdate>(to_bytes(update)).value()});
      event();
    }
  }

  runtime::SeededRandom random_{1};
  ClusterState state_{{}, random_};
  const std::unique_ptr<Store> store_;
  runtime::TimePoint now_{};
  std::int64_t unix_ms_ = 0;
  std::uint64_t events_ = 0, sent_ = 0;
  std::vector<StartWorkerOn> started_;
};

}  // namespace
}  // namespace shoal::scheduler

int main() {
  std::string folder = "/tmp/shoal-bench-head.XXXXXX";
  SHOAL_CHECK(mkdtemp(folder.data()) != nullptr, "no folder in /tmp");
  shoal::scheduler::Bench(folder + "/state.sqlite").run();
  std::filesystem::remove_all(folder);
}
