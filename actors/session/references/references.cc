#include "actors/session/references/references.h"

#include <map>
#include <mutex>

#include "runtime/core/owner_process.h"

namespace shoal::actors {

struct References::State {
  struct Count {
    std::int64_t holds = 0;
    std::int64_t counted = 0;  // references that the node counts for this process
  };
  const OwnerProcess process;
  std::mutex mutex;
  std::map<ObjectKey, Count> counts;
  std::vector<Change> unreported;
  std::function<void()> wake;  // empty once the session is over

  void report(const ObjectKey& object, WorkerId holder, std::int64_t by, NodeId holder_node = {}) {
    if (!wake) return;
    if (unreported.empty()) wake();
    unreported.push_back({object, holder, by, holder_node});
  }
};

struct References::Hold {
  std::shared_ptr<State> state;
  std::vector<ObjectKey> objects;
  ~Hold() {
    if (state->process.forked()) return;
    const std::lock_guard lock(state->mutex);
    for (const ObjectKey& o : objects) {
      const auto it = state->counts.find(o);
      if (--it->second.holds > 0) continue;
      state->report(o, {}, -it->second.counted);
      state->counts.erase(it);
    }
  }
};

void arrived(Value& value, References& references, ValueMemory& memory) {
  value.refer(value.refs(), references.received(value.refs()));
  // Registers memory that came by descriptor, so that it can be moved to a file. A value that came as bytes lies in registered memory.
  if (value.shared() && !value.memory()->referred) memory.keeps(value.memory());
}

References::References(std::function<void()> wake, std::function<void(std::vector<Change>)> report)
    : state_(std::make_shared<State>()), report_(std::move(report)) {
  state_->wake = std::move(wake);
}

References::~References() {
  const std::lock_guard lock(state_->mutex);
  state_->wake = {};
}

std::shared_ptr<const void> References::hold(const std::vector<ObjectKey>& objects) { return taken(objects, false); }

std::shared_ptr<const void> References::received(const std::vector<ObjectKey>& objects) { return taken(objects, true); }

std::shared_ptr<const void> References::taken(const std::vector<ObjectKey>& objects, bool counted) {
  if (objects.empty()) return nullptr;
  auto out = std::make_shared<Hold>();
  const std::lock_guard lock(state_->mutex);
  for (const ObjectKey& o : objects) {
    auto& count = state_->counts[o];
    ++count.holds;
    count.counted += counted;
    if (count.counted > 0) continue;
    // No sender has counted a reference for this process, so this process reports one.
    count.counted = 1;
    state_->report(o, {}, 1);
  }
  out->state = state_;
  out->objects = objects;
  return out;
}

void References::sending(const Value& value, WorkerId to, NodeId node) {
  if (value.refs().empty() || !to) return;
  {
    const std::lock_guard lock(state_->mutex);
    for (const ObjectKey& o : value.refs()) state_->report(o, to, 1, node);
  }
  flush();
}

void References::flush() {
  std::vector<Change> changes;
  {
    const std::lock_guard lock(state_->mutex);
    changes.swap(state_->unreported);
  }
  if (!changes.empty()) report_(std::move(changes));
}

}  // namespace shoal::actors
