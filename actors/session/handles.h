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
#include <string>
#include <string_view>
#include <vector>

#include "actors/cluster/object_key.h"
#include "actors/session/actor_calls.h"
#include "actors/session/references.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

// The method by which an actor is told that nobody refers to it.
inline constexpr std::string_view kRelease = "__shoal_release__";
// And the one by which a worker of functions is asked what it leaves (Handles::left).
inline constexpr std::string_view kLastWords = "__shoal_last_words__";

class Handles {
 public:
  // What is asked of others: on the loop, but for `post`.
  struct Ways {
    std::function<void(std::function<void()>)> post;  // to the loop; any thread
    std::function<ObjectKey()> new_object;            // a name
    std::function<ValueFuture(ActorId)> tell;         // calls kRelease
    std::function<ValueFuture(const ObjectKey&)> get;
    std::function<void(ActorId, std::shared_ptr<const void>)> keep_until_answered;
    std::function<runtime::Timer(std::function<void()>)> later;  // in a while
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
  struct Making {
    std::string class_name = {};
    bool restarts = false;
    std::shared_ptr<const Value> kept = {};
  };
  Share made(ActorId actor, Making making);
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
  // Of a process that leaves its actors to another, which counts them from then on: those that it has made or adopted. Also of one that was
  // told to end and has not answered: this process's word may be lost. What they are made from again goes with the words.
  struct Left {
    ActorId actor;
    Making making;
    std::optional<ObjectKey> stand;
  };
  std::vector<Left> left() const;
  // They are this process's, as if it had made them. Of those that have not left the other one nobody has a handle any more: they end.
  void adopt(Left left);
  // As long as this.
  void pin(std::shared_ptr<const void> what);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::actors
