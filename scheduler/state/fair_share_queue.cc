#include "scheduler/state/fair_share_queue.h"

#include <algorithm>
#include <utility>

namespace shoal::scheduler {

using actors::Resources;

void Shares::gives(JobId job, const Resources& what) {
  if (what.empty()) return;
  auto& held = held_[job];
  held -= what;
  if (held.empty()) held_.erase(job);
}

double Shares::dominant(JobId job, const ResourceSums& all) const {
  const auto it = held_.find(job);
  double out = 0;
  if (it == held_.end()) return out;
  for (const auto& [name, units] : it->second.all()) {
    if (const auto there = all.units(name); there > 0) out = std::max(out, static_cast<double>(units) / static_cast<double>(there));
  }
  return out;
}

void FairShareQueue::add(JobId job, std::size_t index) {
  if (added_ == nullptr || added_->first != job) added_ = &*lines_.try_emplace(job).first;
  added_->second.indices.push_back(index);
}

std::optional<std::size_t> FairShareQueue::next() {
  if (!std::exchange(begun_, true)) {
    for (const auto& [job, line] : lines_) line_up(job, line);
  }
  if (turn_ != nullptr && turn_->second.next == turn_->second.indices.size()) turn_ = nullptr;
  if (!heads_.empty()) {
    if (turn_ != nullptr) line_up(turn_->first, turn_->second);
    turn_ = &*lines_.find(std::get<JobId>(*heads_.begin()));
    heads_.erase(heads_.begin());
  }
  if (turn_ == nullptr) return std::nullopt;
  return turn_->second.indices[turn_->second.next++];
}

}  // namespace shoal::scheduler
