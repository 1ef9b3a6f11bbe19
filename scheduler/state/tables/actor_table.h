// Actors and their names.
//
// PENDING -> STARTING -> ALIVE -> DEAD; RESTARTING takes the place of PENDING after an unexpected end. A hosted actor goes from PENDING to
// ALIVE. Any state goes to DEAD, which is final.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

class ActorTable : public Table<ActorId, actors::ActorRow> {
 public:
  using Names = std::map<std::pair<std::string, std::string>, ActorId>;  // (namespace, name): living actor

  // The actor's row; null if the actor is unknown or dead.
  const actors::ActorRow* living(ActorId id) const;
  const actors::ActorRow* named(const std::string& name_space, const std::string& name) const;
  const Names& names() const { return names_; }

  // ---- transitions
  void request(const actors::GangSpec& spec, JobId job);  // adds all members of the gang
  void host(const actors::HostActor& request, const rows::Worker& process, GangId gang);
  void join_gang(ActorId id, std::uint64_t generation);  // makes a hosted actor alive, once its gang is complete
  void start(ActorId id, NodeId node, WorkerId worker);
  void set_pid(ActorId id, std::int32_t pid);
  void take_calls(ActorId id, const std::string& endpoint);
  void restart(ActorId id, const Error& cause);
  void die(ActorId id, const Error& cause);
  void explain(ActorId id, const std::string& why);
  void set_attributes(ActorId id, const std::map<std::string, std::string>& attributes);

  void set_name(const std::string& name_space, const std::string& name, ActorId id) { names_[{name_space, name}] = id; }
  void restored();
  void forget(ActorId id) { erase(id); }
  void forget_old(std::size_t max);

 private:
  Names names_;
  std::deque<ActorId> ended_;
};

bool may_restart(const actors::ActorRow& row);

}  // namespace shoal::scheduler
