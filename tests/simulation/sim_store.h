// A store on a simulated disk: commits may take their time, and a crash may or may not lose the one that is under way.
#pragma once

#include <memory>

#include "runtime/sim/sim_world.h"
#include "scheduler/store/store.h"

namespace shoal::simulation {

class SimStore final : public scheduler::Store {
 public:
  explicit SimStore(runtime::SimWorld& world) : world_(world) {}
  void commit(const std::vector<scheduler::Record>& records, std::function<void(Result<void>)> done) override;
  Result<std::vector<scheduler::Record>> load() override { return disk_->load(); }

  // Sets how many of a thousand commits are slow, and the longest delay of one.
  void set_slow(std::uint32_t per_mille, runtime::Duration most) {
    slow_per_mille_ = per_mille;
    most_ = most;
  }
  // The store's process ends: the commit under way is applied or lost, and its callback is never called.
  void crash();

 private:
  void write();

  runtime::SimWorld& world_;
  const std::unique_ptr<scheduler::Store> disk_ = scheduler::make_memory_store();
  std::uint32_t slow_per_mille_ = 0;
  runtime::Duration most_{};
  std::vector<scheduler::Record> under_way_;
  std::function<void(Result<void>)> done_;
  runtime::Timer writing_;
};

}  // namespace shoal::simulation
