#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

const char* life_text(Life life) {
  switch (life) {
    case Life::kAlive:
      return "alive";
    case Life::kSilent:
      return "silent";
    case Life::kGone:
      return "gone";
    case Life::kEnded:
      return "ended";
    case Life::kUnknown:
      break;
  }
  return "unknown";
}

const char* state_text(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kEnded:
      return "ended";
    case RunState::kLost:
      break;
  }
  return "lost";
}

int Process::rank() const {
  if (!facts.role.empty() && facts.role != "rank") return -1;
  if (live) return live->rank;
  return steps.rows.empty() ? facts.rank : steps.rows.back().rank;
}

std::string Process::unit_name(int unit) const {
  if (unit < 0 || static_cast<std::size_t>(unit) >= facts.units.size()) return "";
  const auto& name = facts.units[static_cast<std::size_t>(unit)];
  return name.empty() ? "the root" : name;
}

}  // namespace shoal::scheduler::runs
