#include "scheduler/state/tables/hosted_gangs.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::scheduler {

Result<const HostedGangs::Gang*> HostedGangs::add(const actors::HostActor& m, runtime::Random& random) {
  if (m.world_size < 1 || m.rank < 0 || m.rank >= m.world_size) {
    return fail(invalid_argument(fmt::format("rank {} of a gang of {}", m.rank, m.world_size)));
  }
  Gang& gang = gangs_[{m.job, m.gang_key}];
  if (!gang.id) {
    gang.id = random.id<GangId>();
    gang.world_size = m.world_size;
  }
  if (gang.world_size != m.world_size || gang.state != State::kGathering || gang.members.contains(m.rank)) {
    return fail(invalid_argument(fmt::format("rank {} of {} does not belong to gang {} (world size {}{})", m.rank, m.world_size, m.gang_key,
                                             gang.world_size, gang.state != State::kGathering ? ", complete" : "")));
  }
  gang.members[m.rank] = m.actor;
  put_in(m.worker, m.actor);
  if (static_cast<std::int32_t>(gang.members.size()) == gang.world_size) gang.state = State::kComplete;
  return &gang;
}

const Error* HostedGangs::failure_of(const actors::HostActor& member) const {
  const auto it = gangs_.find({member.job, member.gang_key});
  return it == gangs_.end() || !it->second.failure ? nullptr : &*it->second.failure;
}

std::vector<ActorId> HostedGangs::fail_gang_of(ActorId member, const Error& cause) {
  std::vector<ActorId> out;
  for (auto& [key, gang] : gangs_) {
    if (gang.state != State::kGathering) continue;
    const bool its = std::any_of(gang.members.begin(), gang.members.end(), [&](const auto& m) { return m.second == member; });
    if (!its) continue;
    gang.state = State::kFailed;
    gang.failure = cause;
    for (const auto& [rank, id] : gang.members) out.push_back(id);
  }
  return out;
}

std::vector<ActorId> HostedGangs::forget_gang_of(ActorId member) {
  std::vector<ActorId> out;
  std::erase_if(gangs_, [&](const auto& entry) {
    const auto& members = entry.second.members;
    if (std::ranges::none_of(members, [&](const auto& m) { return m.second == member; })) return false;
    for (const auto& [rank, id] : members) out.push_back(id);
    return true;
  });
  return out;
}

void HostedGangs::end_job(JobId job) {
  std::erase_if(gangs_, [&](const auto& gang) { return gang.first.first == job; });
}

std::vector<ActorId> HostedGangs::take_in(WorkerId process) {
  auto inside = in_process_.extract(process);
  return inside ? std::move(inside.mapped()) : std::vector<ActorId>();
}

}  // namespace shoal::scheduler
