#include "fsdp/step/transfers.h"

#include <algorithm>

namespace shoal::fsdp {

void Transfers::begun(int unit, int group) {
  const auto found =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const Transfer& t) { return !t.begun && t.unit == unit && t.group == group; });
  if (found != transfers_.end()) found->begun = true;
}

Transfers::Steps Transfers::advance(std::size_t batches) {
  Steps out;
  std::deque<Transfer> among_shards;
  for (const Transfer& t : transfers_) {
    if (t.among_replicas) {
      out.push_back({Step::Kind::kFinish, t.unit, t.group});
    } else {
      among_shards.push_back(t);
    }
  }
  transfers_.clear();
  const auto ends_batch = [&](std::size_t i) { return i + 1 == among_shards.size() || among_shards[i + 1].batch != among_shards[i].batch; };
  std::size_t left = 0;  // batches that hold inputs
  for (std::size_t i = 0; i < among_shards.size(); ++i) left += ends_batch(i);
  for (std::size_t i = 0; i < among_shards.size(); ++i) {
    Transfer& t = among_shards[i];
    if (left <= batches) {
      transfers_.push_back(t);
      continue;
    }
    left -= ends_batch(i);
    if (!t.replicated) {
      out.push_back({Step::Kind::kFinish, t.unit, t.group});
      continue;
    }
    out.push_back({Step::Kind::kReduceReplicas, t.unit, t.group});
    t.among_replicas = true;
    transfers_.push_back(t);
  }
  return out;
}

Transfers::Steps Transfers::finish() {
  Steps out = advance(0);
  const Steps rest = advance(0);  // those that have continued among replicas
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

void Transfers::drop_added() {
  std::erase_if(transfers_, [](const Transfer& t) { return !t.begun; });
}

}  // namespace shoal::fsdp
