// A head of 10,000 nodes in the simulated world: the real head and nodes with every frame, on one thread. The head's CPU time is separate
// from that of nodes and network. One line of JSON per figure.
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>

#include "runtime/core/check.h"
#include "tests/simulation/sim_cluster.h"

namespace shoal::simulation {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kNodes = 10'000, kActors = 10'000;
constexpr int kSeconds = 10;  // time for which nodes send heartbeats

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void say(const std::string& name, double value) {
  std::printf("{\"name\": \"%s\", \"value\": %.6f}\n", name.c_str(), value);
  std::fflush(stdout);
}

// Prints the CPU time of the head, and that of the rest of the world.
template <class F>
void tell(const Meter& meter, const std::string& name, double per, F&& fn) {
  const double head = meter.seconds(), all = cpu_seconds();
  fn();
  const double of_head = meter.seconds() - head;
  say(name, of_head / per);
  say(name + ", around it", (cpu_seconds() - all - of_head) / per);
}

void run() {
  Meter meter;
  std::unique_ptr<SimCluster> cluster;
  tell(meter, "world: 10,000 nodes join", 1, [&] {
    cluster = std::make_unique<SimCluster>(
        SimCluster::Options{.seed = 1, .num_nodes = kNodes, .cpus = 4, .kept_log_lines = 0, .heartbeat_ms = 1000, .head_meter = &meter});
  });
  cluster->run_for(2s);
  tell(meter, "world: heartbeats", kSeconds, [&] { cluster->run_for(std::chrono::seconds(kSeconds)); });
  auto& driver = cluster->new_driver();
  SHOAL_CHECK(cluster->run_until([&] { return driver.joined(); }), "the driver does not join");
  tell(meter, "world: 10,000 actors alive", 1, [&] {
    std::vector<ActorId> actors;
    for (std::size_t i = 0; i < kActors; ++i) actors.push_back(driver.create_actor(0));
    std::size_t alive = 0;  // so many are known to be alive: the check after each event goes on from here
    SHOAL_CHECK(cluster->run_until(
                    [&] {
                      while (alive < kActors && driver.alive(actors[alive])) ++alive;
                      return alive == kActors;
                    },
                    120s),
                "not all actors are alive");
  });
  tell(meter, "world: heartbeats with 10,000 actors", kSeconds, [&] { cluster->run_for(std::chrono::seconds(kSeconds)); });
  cluster->state().check_invariants();
  SHOAL_CHECK(cluster->disagreement().empty(), cluster->disagreement().c_str());
  say("world: resident MiB of all", resident_mib());
}

}  // namespace
}  // namespace shoal::simulation

int main() {
  shoal::simulation::run();
  return 0;
}
