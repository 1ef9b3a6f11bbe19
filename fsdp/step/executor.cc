#include "fsdp/step/executor.h"

namespace shoal::fsdp {

namespace {

// An executor of Python's hooks throws their exceptions through perform(), so a destructor reports the failure to the machine.
class FailsUnlessEnded {
 public:
  FailsUnlessEnded(StepMachine& machine, const Actions& actions) : machine_(machine), actions_(actions) {}
  FailsUnlessEnded(const FailsUnlessEnded&) = delete;
  ~FailsUnlessEnded() {
    if (!ended_) machine_.failed(actions_);
  }
  void end() { ended_ = true; }

 private:
  StepMachine& machine_;
  const Actions& actions_;
  bool ended_ = false;
};

Result<void> carry_out(StepMachine& machine, Executor& executor, const Actions& actions) {
  for (const Action& a : actions) {
    if (!machine.is_due(a)) continue;
    SHOAL_OK(executor.run(a));
    const auto followed = carry_out(machine, executor, machine.completed(a));
    // Unshards that follow a forward's end fail if a rank has died. The modules' views have to change nevertheless: the actions go on, and
    // the next event reports the death.
    if (!followed && a.kind != Action::Kind::kForwardEnd) return followed;
  }
  return {};
}

}  // namespace

Result<void> perform(StepMachine& machine, Executor& executor, const Result<Actions>& actions) {
  if (!actions) return fail(actions.error());
  FailsUnlessEnded guard(machine, *actions);
  SHOAL_OK(carry_out(machine, executor, *actions));
  guard.end();
  return {};
}

}  // namespace shoal::fsdp
