// The counts of references to this node's objects: references of processes on all nodes, and of objects that contain others.
//
// For objects of other nodes, this node forwards the changes of its own processes to the homes, in order. A process on another node that
// holds references is watched: its node reports its end. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "actors/protocol/wire/node_messages.h"
#include "scheduler/node/objects/object_names.h"
#include "scheduler/node/objects/uncounted_bytes.h"
#include "scheduler/node/peers/peer_nodes.h"
#include "storage/memory_table.h"
#include "storage/outbox.h"
#include "storage/reference_table.h"

namespace shoal::scheduler {

class ObjectReferences {
 public:
  using Object = storage::ReferenceTable::Object;
  struct Events {
    std::function<bool(WorkerId worker)> has_worker;  // true if the worker is on this node
    // Called when a process of this node has dropped its last reference to an object of another node.
    std::function<void(const Object& object, WorkerId worker)> let_go;
  };
  ObjectReferences(const ObjectNames& names, PeerNodes& peer_nodes, storage::MemoryTable& memory, UncountedBytes& uncounted,
                   std::size_t max_references, Events events);

  const storage::ReferenceTable& table() const { return references_; }

  // ---- from processes here, and from other nodes ----
  void count(WorkerId worker, const actors::CountObjects& count);
  void reported(NodeId from, const actors::CountObjects& counts);

  // Records the references that an object of this node contains. Fails if the table has no room for so many.
  Result<void> contain(const Object& outer, const std::vector<actors::ObjectKey>& inner);
  // Counts the `inner` objects for a process of this node that has read the object that contains them.
  void count_contents(const Object& object, const std::vector<Object>& inner, WorkerId worker);
  // Removes an object of this node, whatever its counts are.
  void drop(const Object& object);

  void worker_gone(WorkerId worker);
  void end_job(JobId job);
  // The nodes of processes elsewhere that hold references here.
  std::set<NodeId> nodes() const;
  void node_gone(NodeId node);
  // For a node that has taken another id: forgets what it has exchanged with other nodes under the earlier id.
  void start_anew();

 private:
  using Change = actors::CountObjects::Change;
  void apply(const Change& change, NodeId from);
  void change_count(const actors::ObjectKey& object, WorkerId holder, NodeId node, std::int64_t by);
  void change_contents(const Object& object, WorkerId holder, NodeId node);
  void watch(WorkerId holder, NodeId node);
  void free(const storage::ReferenceTable::Freed& freed);

  const ObjectNames& names_;
  PeerNodes& peer_nodes_;
  storage::MemoryTable& memory_;
  UncountedBytes& uncounted_;
  const Events events_;
  storage::ReferenceTable references_;
  storage::Inbox inbox_;
  // Holders of references on other nodes, with their nodes. A node that holds a reference itself is here under its own id.
  std::map<WorkerId, NodeId> elsewhere_;
  std::map<WorkerId, std::set<NodeId>> watched_;  // by worker of this node: the nodes to which its end is reported
};

}  // namespace shoal::scheduler
