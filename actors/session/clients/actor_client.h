// The client of actors: it makes, finds and ends them, and follows their lives by the reports of head and node.
//
// Calls may be made on an actor that this process has made, has found, or has passed to know(). The head reports the changes of each such
// actor for as long as a connection lasts. Any thread, unless noted.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "actors/session/clients/call_client.h"
#include "actors/session/clients/object_client.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/references/handles.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

class ActorClient {
 public:
  ActorClient(SessionLoop& loop, HeadClient& head, NodeClient& node, CallClient& calls, ObjectClient& objects, runtime::Random& random,
              const Identity& self, runtime::Duration control_timeout);
  ActorClient(const ActorClient&) = delete;
  ActorClient& operator=(const ActorClient&) = delete;

  // Returns when the head accepts the gang; calls on its actors may be made at once. After a refusal such calls fail with its error. For a
  // gang that can never be placed (Unschedulable), create_gang() succeeds and all calls fail. The caller fills in ids, job and gang id
  // (Session::new_id). If the actor exists already (get_if_exists), it is returned, and the ids in `spec` are not used.
  Result<std::optional<FoundActor>> create_gang(const GangSpec& spec);
  // The living actor of this name, in any job; calls on it may be made from now on. Returns NotFound/NoSuchName if there is none.
  Result<FoundActor> find(const FindActor& request);
  // Allows calls on an actor of another process, whose handle came as a plain value. Returns NotFound if the head does not have the actor.
  Result<void> know(ActorId actor, const std::string& class_name);
  // Ends an actor: calls made afterwards fail. `restart`: an actor that may restart loses only its process.
  Result<void> kill(ActorId actor, bool restart = false);
  // Kills an actor that was never placed or lacks its arguments, unless a call of user code in this process waits for it. Returns true if
  // it killed the actor.
  Result<bool> withdraw(ActorId actor);
  // Kills an idle or used-up worker of functions. The actors that it made (a function may return a handle) are adopted by this process.
  Result<void> retire(ActorId worker);
  // True if the reports received so far include the actor's death, or if it is forgotten.
  bool dead(ActorId actor);

  // ---- only while the loop is owned ----
  // Counts the handles that keep actors alive. The last copy of a handle may be released in any thread.
  Handles& handles() { return handles_; }
  // To be called for a report that a process is gone, with its actors.
  void process_gone(const WorkerUpdate& process);

 private:
  Result<FoundActor> found(const Result<runtime::Message>& reply);
  void watch(ActorId actor, runtime::Duration timeout, std::function<void(Result<void>)> on_answer);
  void watch_again();
  void lose_watch();
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
