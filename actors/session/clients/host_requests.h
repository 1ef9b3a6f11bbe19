// Requests to the head to place actors in this process, until they are answered. Each names its actor, so it can be repeated to a head that
// was away. Loop thread only.
#pragma once

#include <functional>
#include <map>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/future.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class HostRequests {
 public:
  explicit HostRequests(runtime::Clock& clock) : clock_(clock) {}
  HostRequests(const HostRequests&) = delete;
  HostRequests& operator=(const HostRequests&) = delete;

  // Sends the request to `head`; send_again() repeats it after the head was away. Before the future fails, `refused` runs. Errors are the
  // head's, DeadlineExceeded after `timeout`, and that of close().
  runtime::Future<HostedActor> add(runtime::Peer& head, const HostActor& actor, runtime::Duration timeout, std::function<void()> refused);
  void send_again(runtime::Peer& head);
  void close(const Error& why);

 private:
  struct Request {
    Bytes body;
    std::function<void()> refused;
    runtime::Promise<HostedActor> promise;
    runtime::Timer deadline;
  };
  void send(runtime::Peer& head, ActorId actor);
  void finish(ActorId actor, Result<HostedActor> answer);

  runtime::Clock& clock_;
  std::map<ActorId, Request> requests_;
};

}  // namespace shoal::actors
