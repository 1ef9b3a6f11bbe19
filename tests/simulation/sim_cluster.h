// A cluster of the real code in one simulated world: the head, nodes on hosts of their own, workers, drivers.
//
// Hosts are "head" ("head1", ... if there are several heads), "n0", "n1", ..., "driver". SimCluster creates and destroys everything; tests
// inject events through it and its parts. Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_driver.h"
#include "tests/simulation/sim_heads.h"
#include "tests/simulation/sim_log.h"
#include "tests/simulation/sim_nodes.h"

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

  SimHeads& heads() { return heads_; }
  SimNodes& nodes() { return nodes_; }
  const SimLog& log() const { return log_; }
  runtime::SimWorld& world() { return world_; }

  // ---- events ----
  // Replaces the driver; one that has not left crashes by this. The new driver runs on a host of its own, or attached to a node on that
  // node's host.
  SimDriver& new_driver() { return put_driver("driver", {}); }
  SimDriver& new_driver_on_node(std::size_t i) { return put_driver(SimNodes::host(i), nodes_.endpoint(i)); }
  // The driver leaves in order, and its job ends.
  void driver_leaves();
  // Kills the process of an actor. Returns false if the actor has none.
  bool crash_worker_of(ActorId actor);
  void partition(const std::string& a, const std::string& b) { world_.fabric().partition(a, b); }
  void heal() { world_.fabric().heal(); }
  // The clock that all processes of this host use. It may stand still; a process that boots on the host starts it again.
  runtime::SimHostClock& clock_of(const std::string& host) { return world_.clock_of(host); }

  bool run_until(const std::function<bool()>& done, runtime::Duration limit = std::chrono::seconds(30)) {
    return world_.run_until(done, limit);
  }
  void run_for(runtime::Duration time) { world_.run_for(time); }

  // ---- state ----
  std::vector<std::string> hosts() const;
  bool head_runs() const { return heads_.leader() != nullptr; }                      // true only while a head leads
  const scheduler::ClusterState& state() const { return heads_.leader()->state(); }  // only while a head leads
  SimDriver& driver() { return *driver_; }
  bool has_driver() const { return driver_ != nullptr; }
  std::string host_of(ActorId actor) const;  // "" while the actor has no node
  // True if each of these actors answers a call without an error.
  bool all_answer(const std::vector<ActorId>& actors);
  // Compares the head's rows with the processes that run: "" if they agree, else the first difference. For a cluster at rest.
  std::string disagreement() const;
  // For several heads. not_kept(): "" if every worker that runs was committed to the store, else the first that was not. store_agrees():
  // true if the store's rows equal the leader's.
  std::string not_kept() const;
  bool store_agrees() const;

 private:
  SimDriver& put_driver(const std::string& host, std::optional<runtime::Endpoint> node);

  runtime::SimWorld world_;
  ProcessTable processes_{world_};
  SimLog log_;
  SimHeads heads_;
  std::unique_ptr<SimDriver> driver_;  // declared before nodes_, because the end of a host ends the driver on it
  SimNodes nodes_;
};

}  // namespace shoal::simulation
