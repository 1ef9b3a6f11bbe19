#include "scheduler/runs/run.h"

#include <algorithm>

namespace shoal::scheduler::runs {

std::int64_t number_in(const Event& event, const char* key) {
  const auto at = event.fields.find(key);
  return at == event.fields.end() || !at->is_number() ? 0 : static_cast<std::int64_t>(std::clamp(at->get<double>(), -9e15, 9e15));
}

std::string text_in(const Event& event, const char* key) {
  const auto at = event.fields.find(key);
  return at == event.fields.end() || !at->is_string() ? "" : at->get<std::string>();
}

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
