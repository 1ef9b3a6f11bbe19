// The interface that carries out the actions of a step machine. There are executors for an arena of ranks (arena.h), for transcripts and
// for simulated ranks (the tests of this folder); one for devices implements the same interface.
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
