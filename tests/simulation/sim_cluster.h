// A cluster of the real code in one simulated world: the head, nodes on hosts of their own, workers, drivers.
//
// Hosts are "head" (with several heads "head1", ... besides), "n0", "n1", ..., "driver". Everything is built here and destroyed here; a
// test speaks of what happens to the cluster. Loop thread only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/head/head.h"
#include "scheduler/node/node.h"
#include "tests/simulation/meter.h"
#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_driver.h"
#include "tests/simulation/sim_head.h"
#include "tests/simulation/sim_launcher.h"
#include "tests/simulation/sim_store.h"

namespace shoal::simulation {

class SimCluster {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::size_t num_nodes = 3;
    std::size_t num_heads = 1;  // several share a store, and one of them leads
    double cpus = 4;            // of each node
    runtime::SimNetworkOptions network{};
    std::size_t kept_log_lines = 200;
    std::uint32_t heartbeat_ms = 500;
    Meter* head_meter = nullptr;  // counts what the head takes
  };

  // Booted, and every node has joined.
  explicit SimCluster(const Options& options);
  ~SimCluster();

  // ---- what happens to it ----
  void boot_head();  // where the one before ended; of several one that does not run, if there is any
  void crash_head(std::size_t i = 0);
  // One does, and leads.
  bool head_runs() const { return leading() != nullptr; }
  bool leads(const std::string& host) const;
  std::size_t num_heads() const { return options_.num_heads; }
  void boot_node(std::size_t i);
  void crash_node(std::size_t i);  // its host, with every process on it
  void kill_node(std::size_t i);   // and its workers, which end with it; the host is there
  bool node_runs(std::size_t i) const { return hosts_.at(i).node != nullptr; }
  // A new driver, in place of the one before, which crashes unless it has left. On the host of its own, or on a node's, attached
  // to the node there.
  SimDriver& new_driver();
  SimDriver& new_driver_on_node(std::size_t i);
  // In order: its job ends.
  void driver_leaves();
  // The process of an actor is killed. False when it has none.
  bool crash_worker_of(ActorId actor);
  void partition(const std::string& a, const std::string& b) { world_.fabric().partition(a, b); }
  void heal() { world_.fabric().heal(); }
  std::vector<std::string> hosts() const;
  // The clocks of its processes, whatever they are; a process that boots finds them going.
  runtime::SimHostClock& clock_of(const std::string& host) { return world_.clock_of(host); }
  SimStore& store() { return store_; }
  SimEtcd& etcd() { return etcd_; }
  // Of every node, also of those that boot later.
  void set_launch_faults(const SimLauncher::Faults& faults);

  bool run_until(const std::function<bool()>& done, runtime::Duration limit = std::chrono::seconds(30)) {
    return world_.run_until(done, limit);
  }
  void run_for(runtime::Duration time) { world_.run_for(time); }

  // ---- what one sees ----
  runtime::SimWorld& world() { return world_; }
  const scheduler::ClusterState& state() const { return leading()->state(); }  // while the head runs
  SimDriver& driver() { return *driver_; }
  bool has_driver() const { return driver_ != nullptr; }
  SimLauncher& launcher(std::size_t i) { return *hosts_.at(i).launcher; }
  std::size_t num_nodes() const { return hosts_.size(); }
  NodeId node_id(std::size_t i) const { return hosts_.at(i).node->id(); }
  std::string host_of(ActorId actor) const;  // "" while it is not placed
  // Every future of these has a value that is no error.
  bool all_answer(const std::vector<ActorId>& actors);
  std::size_t num_workers_running() const;
  // What the head believes against what runs: "" when the two agree, or the first thing that does not. For a cluster
  // that has come to rest.
  std::string disagreement() const;
  // Of several heads: "" when all that was started is kept, and the rows in the store are those of the one that leads.
  std::string not_kept() const;
  bool store_agrees() const;

  std::size_t num_logged_errors() const;
  std::string log() const;  // the last lines

 private:
  class LogSink;
  struct Host {
    std::unique_ptr<runtime::SimNetwork> network;
    std::unique_ptr<SimLauncher> launcher;
    std::unique_ptr<scheduler::Node> node;
    runtime::Endpoint endpoint;  // of the node
  };
  const scheduler::Head* leading() const;
  std::vector<runtime::Endpoint> heads() const;
  runtime::Log make_log(const std::string& name) const;
  void node_is_gone(Host& h);
  SimDriver& put_driver(const std::string& host, std::optional<runtime::Endpoint> node);

  const Options options_;
  runtime::SimWorld world_;
  ProcessTable processes_{world_};
  std::shared_ptr<LogSink> sink_;
  SimStore store_{world_};
  SimEtcd etcd_{world_};
  std::unique_ptr<runtime::SimNetwork> head_network_;
  std::unique_ptr<runtime::Clock> metered_clock_;  // when the head is metered
  std::unique_ptr<runtime::Network> metered_network_;
  std::unique_ptr<scheduler::Head> head_;
  std::vector<std::unique_ptr<SimHead>> several_;
  std::vector<Host> hosts_;
  std::unique_ptr<SimDriver> driver_;
  SimLauncher::Faults launch_faults_;
};

}  // namespace shoal::simulation
