// One of several heads: the real Head, created when its host is elected and destroyed when it loses the lease. This class stands in for
// scheduler/etcd/candidacy.h and scheduler/roles: it requests the lease periodically, and after a loss starts again as a
// follower.
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
  // Null while this process is a follower. A head that exists may have lost the lease without knowing; the store refuses its commits then.
  const scheduler::Head* head() const { return head_.get(); }
  std::uint64_t term() const { return term_; }

 private:
  class Client;  // the store of `head_`, which commits to `etcd_`
  void begin();
  void end();
  void campaign();
  void elected(std::uint64_t term);
  void start_again();

  runtime::SimWorld& world_;
  ProcessTable& processes_;
  SimEtcd& etcd_;
  const runtime::Endpoint at_;
  const std::vector<std::string> heads_;
  const runtime::Log log_;
  runtime::Clock& clock_;  // the clock of this host; while it stands still, the head renews no lease but believes that it leads
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<scheduler::Store> store_;
  std::unique_ptr<scheduler::Head> head_;
  std::uint64_t term_ = 0;
  runtime::TimePoint leads_until_{};
  runtime::Timer again_, restarting_;
  std::shared_ptr<bool> alive_;  // false once this process has ended
};

}  // namespace shoal::simulation
