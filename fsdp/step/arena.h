// Carries out the actions that concern other ranks, with the leases, waits and windows of ShardedModel. Models on devices use this
// class, too: only their bytes move elsewhere, by collectives of Python's Root.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/shard/sharded_model.h"
#include "fsdp/step/executor.h"

namespace shoal::fsdp {

class ArenaExecutor final : public Executor {
 public:
  explicit ArenaExecutor(StepMachine& machine) : machine_(machine) {}

  void set_models(std::vector<std::shared_ptr<ShardedModel>> models) { models_ = std::move(models); }
  // True for the actions among the ranks.
  static bool carries_out(Action::Kind kind);
  // True if an action of this kind may wait for other ranks.
  static bool waits(Action::Kind kind);
  Result<void> run(const Action& action) override;

 private:
  ShardedModel& model(const Action& action) { return *models_[static_cast<std::size_t>(action.model)]; }
  template <class F>
  Result<void> each_group(int unit, F&& fn);
  template <class F>
  Result<void> each_model(F&& fn);

  StepMachine& machine_;
  std::vector<std::shared_ptr<ShardedModel>> models_;
};

}  // namespace shoal::fsdp
