// The client of the node's objects: values that this process shares with others, and values that it fetches.
//
// An object that is published before it is ready is a promise: the process of its future keeps how to cancel it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/clients/call_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/object_store.h"
#include "actors/session/references.h"

namespace shoal::actors {

class ObjectClient {
 public:
  ObjectClient(SessionLoop& loop, NodeClient& node, CallClient& calls, const Identity& self);
  ObjectClient(const ObjectClient&) = delete;
  ObjectClient& operator=(const ObjectClient&) = delete;

  // ---- any thread ----
  // This process keeps to the node's shared limit from now on (ObjectStore::join).
  struct Limit {
    Fd membership_page;
    std::int32_t member = 0;
    std::string folder;                 // for spilled files
    std::function<bool()> interrupted;  // true ends waits for room
  };
  Result<void> share_limit(Limit limit);
  // The memory for large values of this process.
  ObjectStore& memory() { return store_; }
  // References that this process holds and passes on.
  References& references() { return references_; }
  // Publishes a value, ready or not, at the node under this id for other processes. A value that cannot be shared becomes an error. The
  // node keeps it while any process holds it; the result is this process's hold. Without `to_cancel`, cancelling the object cancels the
  // future itself.
  std::shared_ptr<const void> publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  // The same, but the node keeps it until it is dropped, or its job ends.
  void give(ObjectId id, const ValueFuture& future);
  // An object that a process of its job published or will publish at `home` (none: this node). Errors are Unavailable: OwnerDied (process
  // or node ended first), ObjectFreed (no holder left), ObjectLost (its node is unreachable).
  ValueFuture fetch(const ObjectKey& object, WorkerId owner);
  // The node keeps it no longer, even if it is published later.
  void drop(ObjectId id);
  // Cancels the call of an object that any process published. Returns once that process has cancelled it. No effect if it is gone.
  Result<void> cancel(const ObjectKey& object, WorkerId owner, CancelHow how);

  // ---- only while the loop is owned ----
  // As fetch(), from a handler.
  ValueFuture fetch_now(const ObjectKey& object, WorkerId owner);

 private:
  Result<void> cancel_published(const ObjectKey& object, CancelHow how);
  void put_when_ready(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  void put(ObjectId id, const Result<Value>& value);
  void count(const std::vector<References::Change>& changes);
  Result<Value> arrived(const ObjectKey& object, Result<runtime::Message> reply);
  void notify_later(Method method, runtime::Message message);

  SessionLoop& loop_;
  NodeClient& node_;
  CallClient& calls_;
  const Identity& self_;
  References references_;
  std::map<ObjectId, ToCancel> promised_;  // published, and not ready yet
  ObjectStore store_;
};

// A future of this value.
ValueFuture ready_future(Value value);

}  // namespace shoal::actors
