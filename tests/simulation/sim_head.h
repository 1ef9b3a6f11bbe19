// One of several heads: the real Head, made when its host is elected and gone when it leads no more. What scheduler/etcd/candidacy.h
// and scheduler/roles do stands in: it asks the store again and again, and starts anew as one that waits.
//
// Loop thread only. Owned by the cluster; its destruction is a crash.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/head/head.h"
#include "tests/simulation/process_table.h"
#include "tests/simulation/sim_etcd.h"

namespace shoal::simulation {

class SimHead {
 public:
  SimHead(runtime::SimWorld& world, ProcessTable& processes, SimEtcd& etcd, runtime::Endpoint at, std::vector<std::string> heads,
          runtime::Log log);
  ~SimHead();

  const std::string& host() const { return at_.host; }
  // Null while it waits. Not every one there is leads: the store knows.
  const scheduler::Head* head() const { return head_.get(); }
  std::uint64_t epoch() const { return epoch_; }

 private:
  class Client;  // of the store
  void begin();
  void end();
  void campaign();
  void elected(std::uint64_t epoch);
  void start_again();

  runtime::SimWorld& world_;
  ProcessTable& processes_;
  SimEtcd& etcd_;
  const runtime::Endpoint at_;
  const std::vector<std::string> heads_;
  const runtime::Log log_;
  runtime::Clock& clock_;  // of its host: while that stands still it keeps no lease, and takes itself for the one that leads all the same
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<scheduler::Store> store_;
  std::unique_ptr<scheduler::Head> head_;
  std::uint64_t epoch_ = 0;
  runtime::TimePoint leads_until_{};
  runtime::Timer again_, restarting_;
  std::shared_ptr<bool> alive_;  // of this process
};

}  // namespace shoal::simulation
