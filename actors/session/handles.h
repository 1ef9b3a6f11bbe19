// Counts handles of actors in this process: an actor made here ends when no process has a handle of it any more.
//
// No message is needed while no handle leaves this process. The first handle that leaves creates an object without a value, which stands
// for the actor: each handle holds a reference to it (references.h). The actor's maker waits for it at the node, which reports when it is
// freed. An actor counts the handles of itself that it passes on with an object of its own, and stays until that is free as well. The end
// is a call (kRelease) behind all earlier calls.
//
// Python's handles use the same messages (python/shoal/_actors/ownership.py), where Python's garbage collector releases them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/cluster/object_key.h"
#include "actors/session/references.h"
#include "actors/value/call.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

// The method that asks a worker of functions for the actors it leaves (Handles::left).
inline constexpr std::string_view kHandOver = "__shoal_last_words__";

class Handles {
 public:
  // Functions of the session, called on the loop except for `post`.
  struct Ways {
    std::function<void(std::function<void()>)> post;  // to the loop; any thread
    std::function<ObjectKey()> new_object;            // a new name
    std::function<ValueFuture(ActorId)> tell;         // calls kRelease
    std::function<ValueFuture(const ObjectKey&)> get;
    std::function<void(ActorId, std::shared_ptr<const void>)> keep_until_answered;
    std::function<runtime::Timer(std::function<void()>)> later;  // after a pause
  };
  Handles(References& references, Ways ways);
  ~Handles();
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  class Counted;
  // Shared by all copies of a handle. Any thread may release the last copy, also after this object.
  using Share = std::shared_ptr<const Counted>;

  // Sets this process's own actor, which handles of itself do not keep. Loop only, like all members below.
  void is_of(ActorId actor);
  // An actor that this process makes. `kept`: the value for its restarts, if any.
  struct Making {
    std::string class_name = {};
    bool restarts = false;
    std::shared_ptr<const Value> kept = {};
  };
  Share made(ActorId actor, Making making);
  // A handle that came from another process; `token`: the actor's lifetime token. Null for a handle of the actor that lives in this process
  // (is_of): such handles do not keep it.
  Share borrowed(ActorId actor, const ObjectKey& token);
  // A reference to the object that stands for an actor, for a handle that leaves this process; nullopt if it does not count.
  struct LifetimeToken {
    ObjectKey object;
    std::shared_ptr<const void> hold;
  };
  std::optional<LifetimeToken> leaves(ActorId actor, const Share& share);
  // This process's actor was released. False: handles of itself that it has passed on remain, and another release follows.
  bool may_end();
  // The actors that this process made or adopted, for another process to count from now on. Includes those whose release is unanswered,
  // since it may be lost. The values for their restarts are included.
  struct Left {
    ActorId actor;
    Making making;
    std::optional<ObjectKey> token;
  };
  std::vector<Left> left() const;
  // Takes over these actors as if this process had made them. Those without an object have no handle left, and end.
  void adopt(Left left);
  // Keeps `what` as long as this object.
  void pin(std::shared_ptr<const void> what);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::actors
