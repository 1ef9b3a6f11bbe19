// What this process has asked the head to place in it, until the head has answered. A head that was away is asked again: the request names
// the actor that it makes. Loop thread only.
#pragma once

#include <functional>
#include <map>

#include "actors/wire/messages.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/future.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class HostRequests {
 public:
  explicit HostRequests(runtime::Clock& clock) : clock_(clock) {}
  HostRequests(const HostRequests&) = delete;
  HostRequests& operator=(const HostRequests&) = delete;

  // Asks through `head`, now and after each time that it was away (`ask_again`). `refused` is called before the future fails: with the
  // head's word, with DeadlineExceeded after `timeout`, or as close() says.
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
