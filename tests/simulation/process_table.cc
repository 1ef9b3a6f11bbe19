#include "tests/simulation/process_table.h"

namespace shoal::simulation {

using namespace std::chrono_literals;

pid_t ProcessTable::start() {
  alive_.insert(next_);
  return next_++;
}

void ProcessTable::ended(pid_t pid) {
  alive_.erase(pid);
  for (auto it = watches_.begin(); it != watches_.end();) {
    const auto watch = it->second.lock();
    if (watch && watch->pid == pid) tell(*watch);
    it = !watch || watch->pid == pid ? watches_.erase(it) : std::next(it);
  }
}

std::shared_ptr<void> ProcessTable::watch(pid_t pid, std::function<void()> gone) {
  auto made = std::make_shared<Watch>(Watch{pid, std::move(gone), {}});
  if (alive_.contains(pid)) {
    watches_.emplace(next_watch_++, made);
  } else {
    tell(*made);
  }
  return made;
}

void ProcessTable::tell(Watch& watch) {
  const auto delay = runtime::between(world_.random(), 10us, 5ms);
  watch.process_report = world_.clock().after(delay, [raw = &watch] { std::exchange(raw->gone, nullptr)(); });
}

}  // namespace shoal::simulation
