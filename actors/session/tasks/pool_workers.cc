#include "actors/session/tasks/pool_workers.h"

#include <algorithm>
#include <optional>
#include <set>

namespace shoal::actors {

using Cpus = PoolWorker::Cpus;
using State = PoolWorker::State;

namespace {

// Pause after a worker that could not be made, before another is wanted.
constexpr std::chrono::seconds kShortestPause(1), kLongestPause(30);

}  // namespace

PoolWorkers::Workers PoolWorkers::close() {
  turn_over_ = {};
  return std::exchange(workers_, {});
}

PoolWorker* PoolWorkers::find(ActorId id) {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

void PoolWorkers::add(ActorId id, NodeId node) {
  PoolWorker& worker = workers_[id];
  worker.idle_since = clock_.now();
  worker.node = node;
}

void PoolWorkers::set_ready(ActorId id, PoolWorker& worker) {
  worker.state = State::kReady;
  if (node_) worker.node = node_(id);
  worker.created_at = worker.idle_since = clock_.now();
  pause_ = {};
}

void PoolWorkers::pause_making() {
  pause_ = std::clamp<runtime::Duration>(2 * pause_, kShortestPause, kLongestPause);
  wants_after_ = clock_.now() + pause_;
}

// ---- the worker for a task

PoolWorkers::Workers::iterator PoolWorkers::choose(double takes) {
  const double pipelined = std::chrono::duration<double>(options_.pipelined).count();
  auto best = workers_.end();
  for (auto it = workers_.begin(); it != workers_.end(); ++it) {
    const PoolWorker& w = it->second;
    if (w.state != State::kReady || w.cpus == Cpus::kRequested) continue;
    if (w.cpus == Cpus::kRefused && clock_.now() < w.request_after) continue;
    if (!w.in_flight.empty() && (w.expected + takes > pipelined || w.in_flight.size() >= options_.max_in_flight)) continue;
    if (best == workers_.end() || is_better(w, best->second)) best = it;
  }
  return best;
}

bool PoolWorkers::is_better(const PoolWorker& one, const PoolWorker& other) const {
  const auto [turn, others] = node_ ? std::pair(turn_of(one.node), turn_of(other.node)) : std::pair<std::uint64_t, std::uint64_t>();
  if (turn != others) return turn < others;
  if (one.cpus != other.cpus) return one.cpus == Cpus::kHeld;
  return one.in_flight.size() < other.in_flight.size();
}

std::uint64_t PoolWorkers::turn_of(NodeId node) const {
  const auto it = turns_.find(node);
  return it == turns_.end() ? 0 : it->second;
}

bool PoolWorkers::keeps_turn(const PoolWorker& chosen) {
  const std::uint64_t turn = turn_of(chosen.node);
  std::optional<runtime::TimePoint> until;
  for (const auto& [id, w] : workers_) {
    if (w.state != State::kStarting || !w.node || turn_of(w.node) >= turn) continue;
    until = std::max(until.value_or(w.idle_since), w.idle_since);
  }
  const auto left = until ? *until + options_.turn_kept - clock_.now() : runtime::Duration::zero();
  if (left <= runtime::Duration::zero()) return false;
  turn_over_ = clock_.after(left, [this] { changed_(); });
  return true;
}

// ---- more workers, and fewer

bool PoolWorkers::has_another() const {
  return node_ && std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.state == State::kReady; });
}

std::size_t PoolWorkers::num_starting() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const PoolWorker& w = entry.second;
    // A worker that has been starting for so long is not counted: its node has no room, so the tasks need another worker.
    const bool stuck = w.node && clock_.now() - w.idle_since > options_.turn_kept;
    return w.state == State::kStarting && !stuck;
  }));
}

std::vector<NodeId> PoolWorkers::nodes_without(std::vector<NodeId> roomy) const {
  std::set<NodeId> there;
  for (const auto& [id, w] : workers_) {
    if (w.state == State::kStarting || w.state == State::kReady) there.insert(w.node);
  }
  std::erase_if(roomy, [&](NodeId n) { return there.contains(n); });
  std::stable_sort(roomy.begin(), roomy.end(), [&](NodeId a, NodeId b) { return turn_of(a) < turn_of(b); });
  return roomy;
}

void PoolWorkers::give_back(runtime::Duration lease) {
  const auto over = clock_.now() - lease;
  PoolWorker* oldest = nullptr;
  bool idle = false;
  for (auto& [id, w] : workers_) {
    if (w.state != State::kReady || w.created_at > over || w.cpus != Cpus::kHeld) continue;
    if (w.in_flight.empty()) {
      w.state = State::kRetired;
      idle = true;
    }
    if (oldest == nullptr || w.created_at < oldest->created_at) oldest = &w;
  }
  if (!idle && oldest != nullptr) oldest->state = State::kRetired;
}

std::vector<ActorId> PoolWorkers::take_ended(runtime::Duration idle, const std::function<bool(PoolWorker::State)>& nothing_to_do) {
  std::vector<ActorId> out;
  for (const auto& [id, w] : workers_) {
    if (w.state == State::kDead || !w.in_flight.empty()) continue;
    if (w.state == State::kRetired || (clock_.now() - w.idle_since > idle && nothing_to_do(w.state))) out.push_back(id);
  }
  for (const ActorId id : out) workers_.erase(id);
  return out;
}

}  // namespace shoal::actors
