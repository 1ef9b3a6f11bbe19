// This process as a place of actors: their mailboxes, and its reports to node and head about itself. Any thread, unless noted.
#pragma once

#include <memory>
#include <string>

#include "actors/session/clients/call_client.h"
#include "actors/session/clients/host_requests.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/references/actor_host.h"

namespace shoal::actors {

class Hosting {
 public:
  // A recursive cancellation of a call that runs here also cancels the calls in `calls` that it has made.
  Hosting(SessionLoop& loop, runtime::Network& network, HeadClient& head, NodeClient& node, CallClient& calls, const Identity& self);
  Hosting(const Hosting&) = delete;
  Hosting& operator=(const Hosting&) = delete;

  // The address at which this process takes calls.
  std::string endpoint();
  // Reports to the node that this process takes calls.
  Result<void> ready();
  // Announces to the head that this worker is about to end, and that its actor ends with it, even one that could restart.
  Result<void> leave();
  // Reports that this worker begins or ends to block: while it does, others may use its CPUs.
  void set_blocked(bool blocked);
  // The handle and creation spec of the restarted actor that this worker has to make. Returns NotFound if there is none.
  Result<FoundActor> creation_spec();
  // Places an actor in this process as a member of a gang over `world_size` processes. The future is ready when all members are placed.
  Result<runtime::Future<HostedActor>> place(HostActor actor, std::shared_ptr<Hosted> hosted, runtime::Duration timeout);
  void set_attributes(const SetAttributes& attributes);

  // Only while the loop is owned, and before close().
  ActorHost& actors() { return *actors_; }
  // Fails the open requests to place actors, and takes no calls any more. Only while the loop is owned.
  void close();

 private:
  SessionLoop& loop_;
  HeadClient& head_;
  NodeClient& node_;
  const Identity& self_;
  std::unique_ptr<ActorHost> actors_;
  HostRequests requests_;
  bool blocked_ = false;  // also reported to a restarted head
};

}  // namespace shoal::actors
