// The heads of a simulated cluster, on the hosts "head", "head1", ...: one with a store of its own, or several that share a store. At most
// one of them leads.
//
// Loop thread only. Destroyed, they crash.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/head/head.h"
#include "tests/simulation/meter.h"
#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_etcd.h"
#include "tests/simulation/sim_head.h"
#include "tests/simulation/sim_log.h"
#include "tests/simulation/sim_store.h"

namespace shoal::simulation {

class SimHeads {
 public:
  struct Options {
    std::size_t num = 1;
    std::uint32_t heartbeat_ms = 500;
    Meter* meter = nullptr;  // measures the CPU time of a single head
  };
  SimHeads(runtime::SimWorld& world, ProcessTable& processes, const SimLog& log, const Options& options);
  ~SimHeads();

  // Starts the single head again; of several, the first one that does not run, if any.
  void boot();
  void crash(std::size_t i = 0);

  std::size_t num() const { return options_.num; }
  const scheduler::Head* leader() const;  // null while none leads
  bool leads(const std::string& host) const;
  std::vector<runtime::Endpoint> endpoints() const;
  SimStore& store() { return store_; }  // the store of a single head
  SimEtcd& etcd() { return etcd_; }     // the store that several heads share
  const SimEtcd& etcd() const { return etcd_; }

 private:
  void boot_one_of_several();

  const Options options_;
  runtime::SimWorld& world_;
  ProcessTable& processes_;
  const SimLog& log_;
  SimStore store_;
  SimEtcd etcd_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<runtime::Clock> metered_clock_;  // set if the head is metered
  std::unique_ptr<runtime::Network> metered_network_;
  std::unique_ptr<scheduler::Head> head_;
  std::vector<std::unique_ptr<SimHead>> several_;
};

}  // namespace shoal::simulation
