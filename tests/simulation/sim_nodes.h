// The nodes of a simulated cluster, each on a host of its own: "n0", "n1", ...
//
// Loop thread only. Destroyed, their hosts crash.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/node/node.h"
#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_launcher.h"
#include "tests/simulation/sim_log.h"

namespace shoal::simulation {

class SimNodes {
 public:
  struct Options {
    std::size_t num = 3;
    double cpus = 4;  // per node
    std::vector<runtime::Endpoint> heads;
    // Called when the node of this host ends, and with it all other processes there.
    std::function<void(const std::string& host)> on_end;
  };
  SimNodes(runtime::SimWorld& world, ProcessTable& processes, const SimLog& log, Options options);
  ~SimNodes();

  void boot(std::size_t i);
  void crash(std::size_t i);  // ends the host, with every process on it
  void kill(std::size_t i);   // ends the node and with it its workers; the host stays up
  // Kills the worker as a SIGKILL from outside would. Returns false if it does not run.
  bool crash_worker(WorkerId worker);
  // Applies to every node, also to those that boot later.
  void set_launch_faults(const SimLauncher::Faults& faults);

  std::size_t num() const { return hosts_.size(); }
  bool runs(std::size_t i) const { return hosts_.at(i).node != nullptr; }
  static std::string host(std::size_t i) { return "n" + std::to_string(i); }
  NodeId id(std::size_t i) const { return hosts_.at(i).node->id(); }
  const runtime::Endpoint& endpoint(std::size_t i) const { return hosts_.at(i).endpoint; }
  const SimLauncher& launcher(std::size_t i) const { return *hosts_.at(i).launcher; }
  std::vector<WorkerId> workers() const;  // all workers that run, of all nodes

 private:
  struct Host {
    std::unique_ptr<runtime::SimNetwork> network;
    std::unique_ptr<SimLauncher> launcher;
    std::unique_ptr<scheduler::Node> node;
    runtime::Endpoint endpoint;  // the address of the node
  };
  void ended(Host& h);

  runtime::SimWorld& world_;
  ProcessTable& processes_;
  const SimLog& log_;
  const Options options_;
  std::vector<Host> hosts_;
  SimLauncher::Faults launch_faults_;
};

}  // namespace shoal::simulation
