// A cluster of the real code in one simulated world: the head, nodes on hosts of their own, workers, drivers.
//
// Hosts are "head" ("head1", ... if there are several heads), "n0", "n1", ..., "driver". SimCluster creates and destroys everything; tests
// inject events through it. Loop thread only.
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
    std::size_t num_heads = 1;  // above 1, the heads share a store and one of them leads
    double cpus = 4;            // per node
    runtime::SimNetworkOptions network{};
    std::size_t kept_log_lines = 200;
    std::uint32_t heartbeat_ms = 500;
    Meter* head_meter = nullptr;  // measures the head's CPU time
  };

  // Boots the cluster; returns once every node has joined.
  explicit SimCluster(const Options& options);
  ~SimCluster();

  // ---- events ----
  void boot_head();  // restarts the ended head; of several, one that does not run, if any
  void crash_head(std::size_t i = 0);
  // True if a head runs and leads.
  bool head_runs() const { return leading() != nullptr; }
  bool leads(const std::string& host) const;
  std::size_t num_heads() const { return options_.num_heads; }
  void boot_node(std::size_t i);
  void crash_node(std::size_t i);  // the host, with every process on it
  void kill_node(std::size_t i);   // the node and with it its workers; the host stays up
  bool node_runs(std::size_t i) const { return hosts_.at(i).node != nullptr; }
  // Replaces the driver, which crashes unless it has left. The new one runs on a host of its own, or on a node's host, attached to that
  // node.
  SimDriver& new_driver();
  SimDriver& new_driver_on_node(std::size_t i);
  // An orderly end, which ends its job.
  void driver_leaves();
  // Kills the process of an actor. False when it has none.
  bool crash_worker_of(ActorId actor);
  void partition(const std::string& a, const std::string& b) { world_.fabric().partition(a, b); }
  void heal() { world_.fabric().heal(); }
  std::vector<std::string> hosts() const;
  // The clocks that all processes of this host use. A process that boots starts them again if they stand.
  runtime::SimHostClock& clock_of(const std::string& host) { return world_.clock_of(host); }
  SimStore& store() { return store_; }
  SimEtcd& etcd() { return etcd_; }
  // Applies to every node, also to those that boot later.
  void set_launch_faults(const SimLauncher::Faults& faults);

  bool run_until(const std::function<bool()>& done, runtime::Duration limit = std::chrono::seconds(30)) {
    return world_.run_until(done, limit);
  }
  void run_for(runtime::Duration time) { world_.run_for(time); }

  // ---- state ----
  runtime::SimWorld& world() { return world_; }
  const scheduler::ClusterState& state() const { return leading()->state(); }  // only while a head leads
  SimDriver& driver() { return *driver_; }
  bool has_driver() const { return driver_ != nullptr; }
  SimLauncher& launcher(std::size_t i) { return *hosts_.at(i).launcher; }
  std::size_t num_nodes() const { return hosts_.size(); }
  NodeId node_id(std::size_t i) const { return hosts_.at(i).node->id(); }
  std::string host_of(ActorId actor) const;  // "" while it is not placed
  // True if each of these actors answers a call without an error.
  bool all_answer(const std::vector<ActorId>& actors);
  std::size_t num_workers_running() const;
  // Compares the head's state with the processes that run: "", or the first difference. For a cluster at rest.
  std::string disagreement() const;
  // For several heads. not_kept(): "" if every running worker was committed. store_agrees(): whether the store's rows are the leader's.
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
    runtime::Endpoint endpoint;  // the node's
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
  std::unique_ptr<runtime::Clock> metered_clock_;  // set if the head is metered
  std::unique_ptr<runtime::Network> metered_network_;
  std::unique_ptr<scheduler::Head> head_;
  std::vector<std::unique_ptr<SimHead>> several_;
  std::vector<Host> hosts_;
  std::unique_ptr<SimDriver> driver_;
  SimLauncher::Faults launch_faults_;
};

}  // namespace shoal::simulation
