// Gangs whose actors live in existing processes, such as the ranks of a training job. Members ask for their places one by one, and are
// answered together.
//
// A gang gathers its members. Then it is complete, or it has failed, because a member died before. Both states are final.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/loop/random.h"

namespace shoal::scheduler {

class HostedGangs {
 public:
  enum class State { kGathering, kComplete, kFailed };
  struct Gang {
    GangId id;
    State state = State::kGathering;
    std::int32_t world_size = 1;
    std::map<std::int32_t, ActorId> members;  // by rank
    std::optional<Error> failure;             // set for a failed gang
  };

  // Adds a member, and makes the gang with its first one. Returns InvalidArgument if the gang has no such rank.
  Result<const Gang*> add(const actors::HostActor& member, runtime::Random& random);
  // Why the gang of this member failed; null while it has not.
  const Error* failure_of(const actors::HostActor& member) const;
  // Fails the gang of this member, if it still gathers, and returns all members that have asked.
  std::vector<ActorId> fail_gang_of(ActorId member, const Error& cause);
  // Forgets the gang of this member, so that its ranks can ask for a new one. Returns all members that have asked.
  std::vector<ActorId> forget_gang_of(ActorId member);
  void end_job(JobId job);
  // The actors in an existing process.
  void put_in(WorkerId process, ActorId actor) { in_process_[process].push_back(actor); }
  std::vector<ActorId> take_in(WorkerId process);

 private:
  std::map<std::pair<JobId, std::string>, Gang> gangs_;  // (job, gang's key)
  std::map<WorkerId, std::vector<ActorId>> in_process_;
};

}  // namespace shoal::scheduler
