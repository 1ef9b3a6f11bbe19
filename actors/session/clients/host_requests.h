// Requests to the head to place actors in this process, until they are answered. They are repeated after the head was away, since each
// names its actor. Loop thread only.
#pragma once

#include <functional>
#include <map>

#include "actors/wire/head_messages.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/future.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class HostRequests {
 public:
  explicit HostRequests(runtime::Clock& clock) : clock_(clock) {}
  HostRequests(const HostRequests&) = delete;
  HostRequests& operator=(const HostRequests&) = delete;

  // Asks `head`, and again after it was away (`ask_again`). `refused` runs before the future fails: with the head's error, with
  // DeadlineExceeded after `timeout`, or with close()'s error.
  runtime::Future<HostedActor> add(runtime::Peer& head, const HostActor& actor, runtime::Duration timeout, std::function<void()> refused);
  void ask_again(runtime::Peer& head);
  void close(const Error& why);

 private:
  struct Request {
    Bytes body;
    std::function<void()> refused;
    runtime::Promise<HostedActor> promise;
    runtime::Timer deadline;
  };
  void ask(runtime::Peer& head, ActorId actor);
  void finish(ActorId actor, Result<HostedActor> answer);

  runtime::Clock& clock_;
  std::map<ActorId, Request> requests_;
};

}  // namespace shoal::actors
