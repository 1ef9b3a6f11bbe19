// The client of actors: it makes, finds and ends them, and follows their lives by the reports of head and node.
//
// Calls may be made on an actor that this process knows: one that it made, found, or named to know(). The head reports changes of each
// known actor for as long as a connection lasts. Any thread, unless noted.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "actors/session/clients/call_client.h"
#include "actors/session/clients/object_client.h"
#include "actors/session/handles.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

class ActorClient {
 public:
  ActorClient(SessionLoop& loop, HeadClient& head, NodeClient& node, CallClient& calls, ObjectClient& objects, runtime::Random& random,
              const Identity& self, runtime::Duration control_timeout);
  ActorClient(const ActorClient&) = delete;
  ActorClient& operator=(const ActorClient&) = delete;

  // Returns when the head accepts the gang; calls may be made at once. After a refusal such calls fail with its error. For a gang that
  // can never be placed (Unschedulable) this succeeds, and all calls fail.
  // The caller fills in ids, job and gang id (Session::new_id). An existing actor (get_if_exists) is returned, and the ids in `spec` are
  // unused.
  Result<std::optional<FoundActor>> create_gang(const GangSpec& spec);
  // The living actor of this name, in any job; calls on it may be made from now on. Returns NotFound/NoSuchName if there is none.
  Result<FoundActor> find(const FindActor& request);
  // Allows calls on another process's actor, since handles are plain values. Returns NotFound if the head does not have it.
  Result<void> know(ActorId actor, const std::string& class_name);
  // Calls made after this fail. `restart`: a restartable actor only loses its process.
  Result<void> kill(ActorId actor, bool restart = false);
  // Kills an actor that was never placed or lacks its arguments, unless a user's call waits for it here. Returns true if it did.
  Result<bool> withdraw(ActorId actor);
  // Kills an idle or used-up worker of functions. Actors that it made (a function may return a handle) become this process's.
  Result<void> retire(ActorId worker);
  // According to the reports received so far.
  bool dead(ActorId actor);

  // ---- only while the loop is owned ----
  // Counts the handles that keep actors alive; a handle's share may end in any thread.
  Handles& handles() { return handles_; }
  // A report that a process is gone, with its actors.
  void process_gone(const WorkerUpdate& process);

 private:
  Result<FoundActor> found(const Result<runtime::Message>& reply);
  void watch(ActorId actor, runtime::Duration timeout, std::function<void(Result<void>)> done);
  void watch_again();
  void lost_news();
  ValueFuture release(ActorId actor);
  void withdraw_soon(ActorId actor);

  SessionLoop& loop_;
  HeadClient& head_;
  NodeClient& node_;
  CallClient& calls_;
  const Identity& self_;
  const runtime::Duration control_timeout_;
  std::set<ActorId> creating_;  // a restarted head may lack these until their request is repeated
  Handles handles_;
};

}  // namespace shoal::actors
