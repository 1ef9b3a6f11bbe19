#include "tests/simulation/sim_store.h"

#include <utility>

#include "runtime/core/check.h"

namespace shoal::simulation {

using runtime::between;
using runtime::happens;

void SimStore::commit(const std::vector<scheduler::Record>& records, std::function<void(Result<void>)> done) {
  SHOAL_CHECK(!done_, "a commit before the one under way is over");
  for (const auto& r : records) under_way_.push_back({r.table, r.id, r.name, r.state, r.bytes.clone()});
  done_ = std::move(done);
  if (!happens(world_.random(), slow_per_mille_)) return write();
  writing_ = world_.clock().after(between(world_.random(), runtime::Duration(1), most_), [this] { write(); });
}

void SimStore::write() {
  const auto records = std::exchange(under_way_, {});
  const auto done = std::exchange(done_, {});
  disk_->commit(records, [](Result<void>) {});
  done({});
}

void SimStore::crash() {
  writing_ = {};
  if (done_ && happens(world_.random(), 500)) disk_->commit(under_way_, [](Result<void>) {});
  under_way_.clear();
  done_ = {};
}

}  // namespace shoal::simulation
