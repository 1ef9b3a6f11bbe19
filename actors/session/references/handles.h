// Counts handles of actors in this process: an actor made here ends when no process has a handle of it any more.
//
// No message is needed while no handle leaves this process. The first handle that leaves creates an object without a value, the lifetime
// token, which stands for the actor. Each handle holds a reference to it (references.h). The actor's maker waits at the node until this
// object is freed. An actor counts the handles of itself that it passes on with a token of its own, and stays until that is free as well. A
// last call (kRelease), behind all earlier calls, ends the actor.
//
// Python's handles use the same calls and objects (python/shoal/_actors/ownership.py), but Python's garbage collector releases them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/protocol/cluster/object_key.h"
#include "actors/session/references/references.h"
#include "actors/value/call.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

// The method by which a process asks a worker of functions, before the worker ends, for the actors that it has made (Handles::left).
inline constexpr std::string_view kHandOver = "__shoal_last_words__";

class Handles {
 public:
  // Functions of the session, called on the loop except for `post`.
  struct Actions {
    // Calls the function on the loop. May be called by any thread.
    std::function<void(std::function<void()>)> post;
    std::function<ObjectKey()> new_object;        // a key for a new object
    std::function<ValueFuture(ActorId)> release;  // calls kRelease on the actor
    std::function<ValueFuture(const ObjectKey&)> get;
    std::function<void(ActorId, std::shared_ptr<const void>)> keep_until_answered;
    std::function<runtime::Timer(std::function<void()>)> later;  // calls the function after a pause
  };
  Handles(References& references, Actions actions);
  ~Handles();
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  class Counted;
  // A counted handle, shared by its copies. Any thread may release the last copy, also after this object is destroyed.
  using Share = std::shared_ptr<const Counted>;

  // Sets the actor that lives in this process; handles of it in this process do not keep it. Loop only, like all members below.
  void set_own_actor(ActorId actor);
  // Describes an actor that this process makes. `kept`: the value that its restarts need, if any.
  struct Making {
    std::string class_name = {};
    bool restarts = false;
    std::shared_ptr<const Value> kept = {};
  };
  Share add(ActorId actor, Making making);
  // A handle that came from another process; `token`: the actor's lifetime token. Null for a handle of the actor that lives in this process
  // (set_own_actor): such handles do not keep it.
  Share borrowed(ActorId actor, const ObjectKey& token);
  // Returns a reference to the lifetime token of an actor, for a handle that leaves this process; nullopt if the handle does not count.
  struct LifetimeToken {
    ObjectKey object;
    std::shared_ptr<const void> hold;
  };
  std::optional<LifetimeToken> leaves(ActorId actor, const Share& share);
  // Called when the actor of this process gets a kRelease. Returns false if it has passed on handles of itself that remain; it then
  // releases itself once they are gone.
  bool may_end();
  // The actors that this process made or adopted, for another process to count from now on, with the values for their restarts. An actor
  // that has not answered its release is included, since the release may be lost.
  struct Left {
    ActorId actor;
    Making making;
    std::optional<ObjectKey> token;
  };
  std::vector<Left> left() const;
  // Takes over an actor as if this process had made it. An actor without a token has no handle left, and ends.
  void adopt(Left left);
  // Keeps `what` as long as this object lives.
  void pin(std::shared_ptr<const void> what);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::actors
