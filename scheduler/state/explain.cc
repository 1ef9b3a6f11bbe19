#include "scheduler/state/explain.h"

#include <map>

#include <fmt/format.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "runtime/core/utf8.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::Strategy;
using rows::Gang;
using rows::Group;

namespace {

constexpr int kMaxSearches = 20;  // searches of all nodes per tick

std::string group_lacks(const Parts& s, const Group& group) {
  const auto& index = s.nodes.index();
  for (const auto& labels : group.labels) {
    if (!labels.empty() && s.nodes.only(index.capacity(), labels)->empty()) return "no node has the labels " + to_string(labels);
  }
  const auto strategy = group.row.strategy;
  const Placeable could = placeable(s.nodes, group, index.capacity());
  if (could.rooms.empty()) return "no node has the label " + group.together;
  const std::string where = group.together.empty() ? "" : fmt::format(", on nodes with one value of the label {}", group.together);
  if (could.rooms.front()->empty()) return explain(could.wants, *could.rooms.front());
  if (!place(could, strategy)) return impossible(explain(could.wants, *could.rooms.front(), strategy) + where);
  const auto fits = std::ranges::find_if(could.rooms, [&](const Allowed& room) { return place(could.wants, *room, strategy).has_value(); });
  const Placeable now = placeable(s.nodes, group, index.free());
  const auto same = [&](const Allowed& room) { return !room->empty() && (*fits)->contains(room->begin()->first); };
  const auto free = std::ranges::find_if(now.rooms, same);
  return busy(explain(could.wants, free == now.rooms.end() ? NodeResources() : **free, strategy, &**fits) + where);
}

std::string job_lacks(const Parts& s, const rows::Job& job) {
  const auto& index = s.nodes.index();
  const NodeResources& all = index.capacity();
  if (all.empty()) return explain(job.wants, all);
  if (!place(job.wants, all)) return impossible(explain(job.wants, all));
  return busy(explain(job.wants, index.free(), Strategy::kPack, &all));
}

std::string gang_lacks(const Parts& s, const Gang& gang) {
  const auto& where = gang.spec.where;
  if (where.group) {
    const Group& group = s.groups.at(where.group);
    const std::string name = group.row.name.empty() ? to_string(group.row.id) : group.row.name;
    if (group.row.state != actors::GroupState::kCreated) {
      return fmt::format("waits for placement group {} ({})", name, actors::to_string(group.row.state));
    }
    return busy(fmt::format("needs {}; {} of placement group {} {} not that much free", gang.wants[0].to_string(),
                            where.bundle < 0 ? "the bundles" : fmt::format("bundle {}", where.bundle), name,
                            where.bundle < 0 ? "have" : "has"));
  }
  const auto& index = s.nodes.index();
  const NodeResources& all = index.capacity();
  const Allowed could = s.nodes.only(all, where, gang.wants);
  if (could->empty() && !where.labels.empty()) return "no node has the labels " + to_string(where.labels);
  if (could->empty()) return explain(gang.wants, *could);
  if (!place(gang.wants, *could)) return impossible(explain(gang.wants, *could));
  return busy(explain(gang.wants, *s.nodes.only(index.free(), where, gang.wants), Strategy::kPack, &all));
}

void set_reason(Parts& s, const Pending& p, const std::string& why) {
  if (p.group) {
    s.groups.explain(p.group, why);
  } else if (p.job) {
    s.jobs.explain(p.job, why);
  } else {
    for (const auto& a : s.gangs.at(p.gang).spec.actors) s.actors.explain(a.id, why);
  }
}

// Room is kept for this entry, so it does not wait for what equal entries wait for.
bool has_window(const Parts& s, const Pending& p) { return s.queue.window() && s.queue.window()->whose.same_as(p); }

const std::string& reason_in_row(const Parts& s, const Pending& p) {
  return p.group ? s.groups.at(p.group).row.pending_reason
         : p.job ? s.jobs.at(p.job).row.pending_reason
                 : s.actors.at(s.gangs.at(p.gang).spec.actors[0].id).pending_reason;
}

std::string known_reason(const Parts& s, const Pending& p) {
  const std::string& known = reason_in_row(s, p);
  return known.empty() ? "not explained yet" : known;
}

void warn(Parts& s, const Pending& p, const std::string& why) {
  if (p.gang) {
    const Gang& gang = s.gangs.at(p.gang);
    const std::size_t size = gang.spec.actors.size();
    const std::string members = size > 1 ? fmt::format(" (gang of {})", size) : "";
    s.turn.act(Warn{gang.spec.job, fmt::format("{}{} is pending: {}", name_of(s, p), members, why)});
  } else if (p.group) {
    const auto& row = s.groups.at(p.group).row;
    const std::string name = row.name.empty() ? to_string(row.id) : row.name;
    if (row.job) s.turn.act(Warn{row.job, fmt::format("placement group {} is pending: {}", name, why)});
  } else {
    const auto& row = s.jobs.at(p.job).row;
    s.turn.act(Warn{p.job, fmt::format("job {} is pending: {}", row.name, why)});
    s.turn.act(NotifyJob{row});
  }
}

}  // namespace

// The reason becomes part of a row, whose texts are bounded. A longer one loses what users can do without: the end of a name, or of a list.
std::string why(const Parts& s, const Pending& p) {
  constexpr std::size_t kMax = actors::RowBounds::kMaxText;
  if (held_up(s, p)) {
    return fmt::format("waits its turn: what is free is kept for {}, which has waited for long",
                       utf8_prefix(s.queue.window()->name, kMax / 2));
  }
  const std::string wished = p.gang ? s.nodes.unschedulable(s.gangs.at(p.gang).spec.where) : "";
  if (!wished.empty()) return wished;
  const std::string lacks = p.group ? group_lacks(s, s.groups.at(p.group))
                            : p.job ? job_lacks(s, s.jobs.at(p.job))
                                    : gang_lacks(s, s.gangs.at(p.gang));
  const std::string unschedulable = s.nodes.unschedulable();
  return std::string(utf8_prefix(lacks, kMax - unschedulable.size())) + unschedulable;
}

// Entries beyond the first kMaxSearches have the reasons of their rows, because a search for each would take long.
std::vector<std::string> summed_reasons(const Parts& s) {
  const auto& options = s.turn.options;
  std::vector<std::string> out;
  std::vector<std::size_t> alike;
  std::map<std::string, std::size_t> index;
  std::size_t others = 0;
  std::uint64_t before = 0;
  std::string reason;
  int num_searches = 0;
  for (const auto& p : s.queue.entries()) {
    if (p.like == 0 || p.like != before || has_window(s, p)) reason = ++num_searches <= kMaxSearches ? why(s, p) : known_reason(s, p);
    before = has_window(s, p) ? 0 : p.like;
    std::string text = name_of(s, p) + ": " + reason;
    const auto known = index.find(text);
    if (known != index.end()) {
      ++alike[known->second];
    } else if (out.size() < options.max_status_lines) {
      index.emplace(text, out.size());
      out.push_back(std::move(text));
      alike.push_back(1);
    } else {
      ++others;
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = utf8_prefix(out[i], options.max_status_text);
    if (alike[i] > 1) out[i] += fmt::format(" ({} alike)", alike[i]);
  }
  if (others > 0) out.push_back(fmt::format("{} others, which `shoal list` shows with their reasons", others));
  return out;
}

// Equal entries are explained once, others a few per tick.
void explain_pending(Parts& s) {
  std::uint64_t before = 0;
  std::string reason;
  s.queue.num_searches = 0;
  std::size_t num_warned = s.queue.num_warned();
  for (std::size_t i = num_warned; i < s.queue.size(); ++i) {
    ++s.queue.num_visits;
    Pending& p = s.queue.at(i);
    if (i == num_warned && p.shown == Pending::Shown::kWarning) ++num_warned;
    const bool warns = s.turn.now - p.since >= s.turn.options.warn_after;
    if (p.shown == Pending::Shown::kWarning || s.turn.now < p.not_before || (p.shown == Pending::Shown::kReason && !warns)) continue;
    if (p.like == 0 || p.like != before || has_window(s, p)) {
      if (++s.queue.num_searches > kMaxSearches) break;
      reason = why(s, p);
    }
    before = has_window(s, p) ? 0 : p.like;
    p.shown = warns ? Pending::Shown::kWarning : Pending::Shown::kReason;
    if (i == num_warned && warns) ++num_warned;
    set_reason(s, p, reason);
    if (warns) warn(s, p, reason);
  }
  s.queue.set_num_warned(num_warned);
}

void explain_newcomer(Parts& s) {
  const std::size_t size = s.queue.size();
  if (size == 0 || s.queue.at(size - 1).shown != Pending::Shown::kNothing) return;
  Pending& p = s.queue.at(size - 1);
  const Pending* const before = p.like != 0 && size > 1 ? &s.queue.at(size - 2) : nullptr;
  if (before != nullptr && before->like == p.like && before->shown != Pending::Shown::kNothing && !has_window(s, *before)) {
    set_reason(s, p, reason_in_row(s, *before));
  } else if (s.queue.num_searches < kMaxSearches) {
    ++s.queue.num_searches;
    set_reason(s, p, why(s, p));
  } else {
    return;  // the entry is left to the next tick
  }
  p.shown = Pending::Shown::kReason;
}

}  // namespace shoal::scheduler
