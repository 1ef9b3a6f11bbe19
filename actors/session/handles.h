// The handles of actors in this process that count: an actor that it has made is told to end when the last of them is gone, in whatever
// process that was.
//
// As long as no handle leaves this process, nobody is told anything. With the first that does, an object that nobody ever puts stands for
// the actor: each handle holds a reference to it (references.h), whoever made the actor waits for it at the node, and hears that it was
// freed. An actor counts the handles that it has of itself and gives away with an object of its own: told to end, it stays until nobody has
// that, either. What tells it is a call like any other (kRelease), behind those that were made before.
//
// Python's handles do the same on the same wire (python/shoal/_handle.py), where they are garbage of Python's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "actors/cluster/object_key.h"
#include "actors/session/actor_calls.h"
#include "actors/session/references.h"

namespace shoal::actors {

// The method by which an actor is told that nobody refers to it.
inline constexpr std::string_view kRelease = "__shoal_release__";

class Handles {
 public:
  // What is asked of others: on the loop, but for `post`.
  struct Ways {
    std::function<void(std::function<void()>)> post;  // to the loop; any thread
    std::function<ObjectKey()> new_object;            // a name
    std::function<ValueFuture(ActorId)> tell;         // calls kRelease
    std::function<ValueFuture(const ObjectKey&)> get;
    std::function<void(ActorId, std::shared_ptr<const void>)> keep_until_answered;
  };
  Handles(References& references, Ways ways);
  ~Handles();
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  class Counted;
  // One that all copies of a handle have together. Where the last is gone does not matter: any thread, also after this.
  using Share = std::shared_ptr<const Counted>;

  // This process's actor, if it is one: handles of itself do not keep it. Loop only, as is what follows.
  void is_of(ActorId actor);
  // An actor that this process makes. `kept`: what it is made from again, if it is (restarts).
  Share made(ActorId actor, bool restarts = false, std::shared_ptr<const void> kept = {});
  // What has come from elsewhere, with the name of what stands for the actor. Null of this process's own.
  Share borrowed(ActorId actor, const ObjectKey& stand);
  // A reference to what stands for an actor, for a handle that leaves this process; nothing of one that does not count.
  struct Stand {
    ObjectKey object;
    std::shared_ptr<const void> hold;
  };
  std::optional<Stand> leaves(ActorId actor, const Share& share);
  // This process's actor was told to end. If it is not to: it is told again when those handles are gone that it has given away of itself.
  bool may_end();
  // As long as this.
  void pin(std::shared_ptr<const void> what);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::actors
