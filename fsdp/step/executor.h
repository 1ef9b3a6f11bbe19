// The interface that carries out the actions of a step machine. HookExecutor (python/native/fsdp/step.cc) runs fully_shard's steps, on CPUs
// and devices. Actions that concern other ranks go to ArenaExecutor (arena.h), actions on tensors to Python's Root.
#pragma once

#include "fsdp/step/step_machine.h"

namespace shoal::fsdp {

class Executor {
 public:
  virtual ~Executor() = default;
  // An event of the program may occur inside: an action may run the program's hooks.
  virtual Result<void> run(const Action& action) = 0;
};

// Carries out an event's actions in order, up to the first error, which it returns.
Result<void> perform(StepMachine& machine, Executor& executor, const Result<Actions>& actions);

}  // namespace shoal::fsdp
