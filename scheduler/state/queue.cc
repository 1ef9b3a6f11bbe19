#include "scheduler/state/queue.h"

#include <algorithm>
#include <set>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/placing.h"

namespace shoal::scheduler {

using actors::Resources;
using actors::WorkerState;
using rows::Gang;

namespace {

constexpr int kMaxPendingSearches = 10;  // searches of all nodes per call

JobId job_of(const Parts& s, const Pending& p) { return p.group ? s.groups.at(p.group).row.job : p.gang ? p.gang_job : p.job; }

std::vector<Resources> wants_of(const Parts& s, const Pending& p) {
  return p.group ? missing_bundles(s.groups.at(p.group)) : p.gang ? s.gangs.at(p.gang).wants : s.jobs.at(p.job).wants;
}

bool fits(const Parts& s, const Pending& p, const NodeResources& room) {
  const auto wants = wants_of(s, p);
  if (p.group) {
    const rows::Group& group = s.groups.at(p.group);
    return place(placeable(s.nodes, group, room), group.row.strategy).has_value();
  }
  if (p.gang) return place(wants, *s.nodes.only(room, s.gangs.at(p.gang).spec.where, wants)).has_value();
  return place(wants, room).has_value();
}

runtime::Duration window_length(const StateOptions& options, const Pending& p) {
  return std::min<runtime::Duration>(options.first_window * (1 << std::min(p.windows, 10)), options.longest_window);
}

// One round of turns. Returns true if a placement group was placed: then another round is due, since gangs in the group may have had their
// turn before it.
bool place_pending_once(Parts& s) {
  const std::size_t size = s.queue.size(), first = s.queue.begin_round(s.turn.now, s.nodes.index().growth());
  s.queue.num_visits += size - first;
  FairShareQueue fair_share_queue(s.shares, s.nodes.index().all());
  for (std::size_t i = first; i < size; ++i) {
    const Pending& p = s.queue.at(i);
    if (s.turn.now >= p.not_before && (p.waits_in_group() || p.tried_at != s.nodes.index().growth()) && !held_up(s, p))
      fair_share_queue.add(job_of(s, p), i);
  }
  std::vector<bool> placed(size);
  bool placed_group = false, any = false;
  std::set<std::uint64_t> full;  // `like` of entries that did not fit
  while (const auto next = fair_share_queue.next()) {
    Pending& p = s.queue.at(*next);
    if (!full.contains(p.like) && place_one(s, p)) {
      placed[*next] = any = true;
      placed_group |= static_cast<bool>(p.group);
      if (s.queue.window() && s.queue.window()->whose.same_as(p)) s.queue.close_window();
    } else {
      p.tried_at = s.nodes.index().growth();
      if (p.like != 0) full.insert(p.like);
    }
  }
  if (any) {
    std::size_t i = 0;
    s.queue.drop([&](const Pending&) { return placed[i++]; });
  }
  return placed_group;
}

}  // namespace

void place_pending(Parts& s) {
  if (s.queue.put_off) return;
  while (place_pending_once(s)) {
  }
}

void check_windows(Parts& s) {
  const auto& entries = s.queue.entries();
  const auto& window = s.queue.window();
  const auto now = s.turn.now;
  const auto& options = s.turn.options;
  if (window) {
    const auto it = std::find_if(entries.begin(), entries.end(), [&](const Pending& p) { return window->whose.same_as(p); });
    if (it != entries.end() && now < window->until) return;
    if (it != entries.end()) {
      Pending& p = s.queue.at(static_cast<std::size_t>(it - entries.begin()));
      p.rests_until = now + std::max<runtime::Duration>(options.patience, 2 * window_length(options, p));
      ++p.windows;
    }
    s.queue.close_window();
    place_pending(s);
  }
  const std::uint64_t capacity_changes = s.nodes.index().capacity_changes();
  if (!s.queue.needs_search(now, capacity_changes)) return;
  int num_searches = 0;
  std::uint64_t like = 0;              // the `like` of the last entry that could never fit
  auto next = now + options.patience;  // an entry that comes from now on does not need a window before
  for (const auto& p : entries) {
    ++s.queue.num_visits;
    if (p.waits_in_group()) continue;
    if (const auto due = std::max({p.since + options.patience, p.rests_until, p.not_before}); now < due) {
      next = std::min(next, due);
      continue;
    }
    if (p.like != 0 && p.like == like) continue;
    if (++num_searches > kMaxPendingSearches) break;
    if (!fits(s, p, s.nodes.index().capacity())) {
      like = p.like;
      continue;
    }
    return s.queue.open_window({p, wants_of(s, p), name_of(s, p), now + window_length(options, p)});
  }
  s.queue.searched(next, capacity_changes);
}

Pending waiting(Parts& s, const Gang& gang) {
  Pending out{gang.spec.id, {}, {}, s.turn.now};
  out.gang_job = gang.spec.job;
  // ResourceIndex does not track room in placement groups, so `like` stays 0 for a gang in one (Pending::waits_in_group).
  if (gang.spec.where.group) return out;
  const Pending* const last = s.queue.empty() ? nullptr : &s.queue.entries().back();
  const Gang* const before = last != nullptr && last->gang && last->like != 0 ? &s.gangs.at(last->gang) : nullptr;
  const bool alike = before != nullptr && gang.wants == before->wants && gang.spec.where == before->spec.where;
  out.like = alike ? last->like : s.queue.new_like();
  return out;
}

Pending waiting(Parts& s, const rows::Job& job) {
  Pending out{{}, job.row.id, {}, s.turn.now};
  const Pending* const last = s.queue.empty() ? nullptr : &s.queue.entries().back();
  const bool alike = last != nullptr && last->job && s.jobs.at(last->job).wants == job.wants;
  out.like = alike ? last->like : s.queue.new_like();
  return out;
}

void drop_gang(Queue& queue, GangId gang) {
  queue.drop([&](const Pending& p) { return p.gang && p.gang == gang; });
}

void drop_group(Queue& queue, GroupId group) {
  queue.drop([&](const Pending& p) { return p.group == group; });
}

void drop_job(Parts& s, JobId job) {
  s.queue.drop([&](const Pending& p) {
    return p.job == job || (p.gang && s.gangs.at(p.gang).spec.job == job) || (p.group && s.groups.at(p.group).row.job == job);
  });
}

std::string name_of(const Parts& s, const Pending& p) {
  return p.group  ? "placement group " + to_string(p.group)
         : p.gang ? actors::people_call(s.gangs.at(p.gang).spec.actors[0].class_name)
                  : "job " + s.jobs.at(p.job).row.name;
}

bool held_up(const Parts& s, const Pending& p) {
  const auto& window = s.queue.window();
  if (!window || window->whose.same_as(p) || p.waits_in_group()) return false;
  const auto theirs = wants_of(s, p);
  const auto needs = [&](const std::string& name) {
    return std::any_of(theirs.begin(), theirs.end(), [&](const Resources& w) { return w.units(name) > 0; });
  };
  for (const auto& want : window->wants) {
    for (const auto& [name, units] : want.all()) {
      if (needs(name)) return true;
    }
  }
  return false;
}

bool wanted_back(const Parts& s, JobId job) {
  if (s.queue.empty()) return false;
  NodeResources lent = s.nodes.index().free();
  bool lends = false;
  for (const auto& [id, w] : s.workers) {
    if (w.row.job != job || w.group || w.lent > 0 || w.row.state == WorkerState::kExited) continue;
    const auto actor = s.actors.find(w.actor);
    const auto node = lent.find(w.row.node);
    if (actor == s.actors.end() || node == lent.end() || !actors::is_function_worker(actor->second)) continue;
    node->second += w.held;
    lends = true;
  }
  if (!lends) return false;
  const double ours = s.shares.dominant(job, s.nodes.index().all());
  int num_searches = 0;
  return std::ranges::any_of(s.queue.entries(), [&](const Pending& p) {
    if (p.waits_in_group() || s.turn.now < p.not_before || num_searches == kMaxPendingSearches) return false;
    const JobId theirs = job_of(s, p);
    if (theirs != job && s.shares.dominant(theirs, s.nodes.index().all()) >= ours) return false;
    ++num_searches;
    return fits(s, p, lent);
  });
}

}  // namespace shoal::scheduler
