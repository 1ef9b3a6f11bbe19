// The queue of entries that wait for room: turns and windows (rules at Pending in cluster_state.h).
#include <algorithm>

#include <fmt/format.h>

#include "actors/cluster/function_worker.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using actors::Resources;
using actors::WorkerState;

namespace {

constexpr int kMaxPendingLooks = 10;  // searches of all nodes per call

bool same(const auto& a, const auto& b) { return a.gang == b.gang && a.job == b.job && a.group == b.group; }

}  // namespace

ClusterState::Pending ClusterState::waiting(const Gang& gang) const {
  Pending out{gang.spec.id, {}, {}, now_};
  out.gang_job = gang.spec.job;
  if (gang.spec.where.group) return out;  // ResourceIndex does not track room in groups
  const Gang* const last = !pending_.empty() && pending_.back().like ? &gangs_.at(pending_.back().gang) : nullptr;
  const bool alike = last != nullptr && gang.wants == last->wants && gang.spec.where == last->spec.where;
  out.like = alike ? pending_.back().like : gang.spec.id;
  return out;
}

JobId ClusterState::job_of(const Pending& p) const { return p.group ? groups_.at(p.group).row.job : p.gang ? p.gang_job : p.job; }

std::string ClusterState::name_of(const Pending& p) const {
  return p.group  ? "placement group " + to_string(p.group)
         : p.gang ? actors::people_call(gangs_.at(p.gang).spec.actors[0].class_name)
                  : "job " + jobs_.at(p.job).row.name;
}

std::vector<Resources> ClusterState::wants_of(const Pending& p) const {
  return p.group ? missing_bundles(groups_.at(p.group)) : p.gang ? gangs_.at(p.gang).wants : jobs_.at(p.job).wants;
}

// Returns true for a gang that waits for room in its placement group.
bool ClusterState::waits_in_group(const Pending& p) const { return p.gang && !p.like; }

void ClusterState::place_pending() {
  while (place_pending_once()) {
  }
}

// Returns true if a placement group was placed: gangs in it may have had their turn before.
bool ClusterState::place_pending_once() {
  std::deque<Pending> all = std::exchange(pending_, {});
  FairShareQueue fair_share_queue(shares_, resource_index().all());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Pending& p = all[i];
    if (now_ >= p.not_before && (waits_in_group(p) || p.tried_at != resource_index().growth()) && !held_up(p))
      fair_share_queue.add(job_of(p), i);
  }
  std::vector<bool> placed(all.size());
  bool placed_group = false, any = false;
  std::set<GangId> full;  // `like` of entries that did not fit
  while (const auto next = fair_share_queue.next()) {
    Pending& p = all[*next];
    if (!full.contains(p.like) && place_one(p)) {
      placed[*next] = any = true;
      placed_group |= static_cast<bool>(p.group);
      if (window_ && same(window_->whose, p)) window_.reset();
    } else {
      p.tried_at = resource_index().growth();
      if (p.like) full.insert(p.like);
    }
  }
  if (any) {
    std::size_t i = 0;
    std::erase_if(all, [&](const Pending&) { return placed[i++]; });
  }
  for (auto& p : pending_) all.push_back(p);  // empty today: a start adds no entry
  pending_ = std::move(all);
  return placed_group;
}

bool ClusterState::place_one(const Pending& p) {
  if (p.group) return place_group(p.group);
  if (p.gang) {
    Gang& gang = gangs_.scratch(p.gang);
    const auto sites = place_gang(gang);
    if (sites) start_gang(gang, *sites);
    return sites.has_value();
  }
  Job& job = jobs_.scratch(p.job);
  const auto nodes = place(job.wants, resource_index().free_for(job.wants));
  if (!nodes) return false;
  job.placed = *nodes;
  for (std::size_t i = 0; i < nodes->size(); ++i) nodes_.scratch((*nodes)[i]).row.available -= job.wants[i];
  if (job.row.num_workers > 0) {
    act(FindPortOn{nodes->front(), p.job});
  } else {
    start_job(jobs_.edit(p.job));
  }
  return true;
}

// ---- room that is kept

bool ClusterState::held_up(const Pending& p) const {
  if (!window_ || same(window_->whose, p) || waits_in_group(p)) return false;
  const auto theirs = wants_of(p);
  const auto asks_for = [&](const std::string& name) {
    return std::any_of(theirs.begin(), theirs.end(), [&](const Resources& w) { return w.units(name) > 0; });
  };
  for (const auto& want : window_->wants) {
    for (const auto& [name, units] : want.all()) {
      if (asks_for(name)) return true;
    }
  }
  return false;
}

bool ClusterState::fits(const Pending& p, const NodeResources& room) const {
  const auto wants = wants_of(p);
  if (p.group) {
    const Group& group = groups_.at(p.group);
    const Asked could = asked(group, room);
    return place(could.wants, *could.allowed, group.row.strategy).has_value();
  }
  if (p.gang) return place(wants, *only(room, gangs_.at(p.gang).spec.where, wants)).has_value();
  return place(wants, room).has_value();
}

bool ClusterState::could_ever_fit(const Pending& p) const { return fits(p, resource_index().capacity()); }

bool ClusterState::wanted_back(JobId job) const {
  if (pending_.empty()) return false;
  NodeResources lent = resource_index().free();
  bool lends = false;
  for (const auto& [id, w] : workers_) {
    if (w.row.job != job || w.group || w.lent > 0 || w.row.state == WorkerState::kExited) continue;
    const auto actor = actors_.find(w.actor);
    const auto node = lent.find(w.row.node);
    if (actor == actors_.end() || node == lent.end() || !actors::is_function_worker(actor->second)) continue;
    node->second += w.held;
    lends = true;
  }
  if (!lends) return false;
  const double ours = shares_.of(job, resource_index().all());
  int looks = 0;
  return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& p) {
    if (waits_in_group(p) || now_ < p.not_before || looks == kMaxPendingLooks) return false;
    const JobId theirs = job_of(p);
    if (theirs != job && shares_.of(theirs, resource_index().all()) >= ours) return false;
    ++looks;
    return fits(p, lent);
  });
}

void ClusterState::look_at_windows() {
  if (window_) {
    const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return same(window_->whose, p); });
    if (it != pending_.end() && now_ < window_->until) return;
    if (it != pending_.end()) {
      const auto length = window_length(*it);
      it->rests_until = now_ + std::max<runtime::Duration>(options_.patience, 2 * length);
      ++it->windows;
    }
    window_.reset();
    place_pending();
  }
  int looks = 0;
  GangId like{};  // `like` of the last entry that could never fit
  for (const auto& p : pending_) {
    if (now_ - p.since < options_.patience || now_ < p.rests_until || now_ < p.not_before || waits_in_group(p)) continue;
    if (p.like && p.like == like) continue;
    if (++looks > kMaxPendingLooks) return;
    if (!could_ever_fit(p)) {
      like = p.like;
      continue;
    }
    window_ = Window{p, wants_of(p), name_of(p), now_ + window_length(p)};
    return;
  }
}

runtime::Duration ClusterState::window_length(const Pending& p) const {
  return std::min<runtime::Duration>(options_.first_window * (1 << std::min(p.windows, 10)), options_.longest_window);
}

}  // namespace shoal::scheduler
