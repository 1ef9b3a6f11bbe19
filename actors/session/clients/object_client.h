// The client of the node's objects: values that this process shares with others, and values that it fetches.
//
// An object may be published before its value exists. The process that published it then keeps a way to cancel the call that makes the
// value.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/clients/call_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/objects/object_store.h"
#include "actors/session/references/references.h"

namespace shoal::actors {

class ObjectClient {
 public:
  ObjectClient(SessionLoop& loop, NodeClient& node, CallClient& calls, const Identity& self);
  ObjectClient(const ObjectClient&) = delete;
  ObjectClient& operator=(const ObjectClient&) = delete;

  // ---- any thread ----
  // The node's limit on large values, which all its processes share, and this process's place on the usage board (ObjectStore::join).
  struct Limit {
    Fd membership_page;
    std::int32_t member = 0;
    std::string folder;                 // where files of spilled values are made
    std::function<bool()> interrupted;  // polled by waits for room; true ends them
  };
  Result<void> share_limit(Limit limit);
  // The memory for large values of this process.
  ObjectStore& memory() { return store_; }
  // References that this process holds and passes on.
  References& references() { return references_; }
  // Publishes a value, ready or not, at the node under this id for other processes. A value that cannot be shared becomes an error. The
  // node keeps the value while any process holds a reference; the returned pointer is this process's. Without `to_cancel`, cancelling the
  // object cancels the call of `future`.
  std::shared_ptr<const void> publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  // As publish(), but the node keeps the value until drop(), or until its job ends.
  void give(ObjectId id, const ValueFuture& future);
  // Fetches an object that a process of its job published or will publish at the object's home. A key without a home means this node. Fails
  // as Unavailable: OwnerDied (the process or its node ended before), ObjectFreed (no holder left), ObjectLost (the home is unreachable).
  ValueFuture fetch(const ObjectKey& object, WorkerId owner);
  // Makes the node free an object, also one that is published only later.
  void drop(ObjectId id);
  // Cancels the call that makes an object, in the process that published it. Returns once that process has cancelled the call. No effect if
  // the process is gone.
  Result<void> cancel(const ObjectKey& object, WorkerId owner, CancelHow how);

  // ---- only while the loop is owned ----
  // As fetch(), for a caller that owns the loop, such as a handler.
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
  std::map<ObjectId, ToCancel> promised_;  // objects that are published and not ready yet
  ObjectStore store_;
};

// Returns a future that is ready with this value.
ValueFuture ready_future(Value value);

}  // namespace shoal::actors
