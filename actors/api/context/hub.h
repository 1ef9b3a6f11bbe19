// The state of a Context that its handles and futures share.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "actors/api/context/running.h"
#include "actors/protocol/cluster/object_key.h"

namespace shoal::actors {
class Session;
}

namespace shoal::actors::api {

// The name by which other processes get a value, once a reference to it has left this process.
struct Name {
  ObjectKey object;
  WorkerId owner;
  std::shared_ptr<const void> hold;  // keeps the object
};

// The part of a Context that its handles and futures use.
struct Hub {
  Hub(Session& s, std::string who) : session(s), caller(std::move(who)) {}

  Session& session;
  std::string caller;         // describes this process in errors
  std::uint64_t wakeups = 0;  // coroutines whose future became ready; only while the loop is owned
  // The thread that runs remote functions, in a worker. It lends its CPUs during long waits, and stops waiting when its call is
  // cancelled.
  std::thread::id function_in;
  CancelledCalls cancelled = {};

  // Where this process encodes values.
  ValueMemory& memory() const;
  // Prepares calls on an actor that another process spawned. Returns NotFound if the head does not have it.
  Result<void> know(ActorId actor, std::string_view class_name) const;
  // SessionLoop::wait for user code. Returns Cancelled/TaskCancelled in a cancelled remote function.
  Result<void> wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline);
  // Publishes a value of this process, ready or not. While a caller holds the returned Name, publishing the value again returns the same
  // one. `call`: the call that a cancellation of the object cancels.
  Name publish(const ValueFuture& future, const ValueFuture& call);

 private:
  struct Published;
  std::map<const void*, std::weak_ptr<const Published>> published_ = {};  // by the future's identity; only while the loop is owned
  std::size_t sweep_at_ = 64;
};

}  // namespace shoal::actors::api
