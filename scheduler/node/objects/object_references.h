// The counts of references to this node's objects, by processes of all nodes and by objects that contain them.
//
// This node forwards its own processes' counts of other nodes' objects to the homes, in order. Each counted holder elsewhere is watched at
// its node, which reports its end. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "actors/wire/node_messages.h"
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
    std::function<bool(WorkerId worker)> has_worker;  // on this node
    // A process here dropped its last reference to another node's object.
    std::function<void(const Object& object, WorkerId worker)> let_go;
  };
  ObjectReferences(const ObjectNames& names, PeerNodes& peer_nodes, storage::MemoryTable& memory, UncountedBytes& uncounted,
                   std::size_t max_references, Events events);

  const storage::ReferenceTable& table() const { return references_; }

  // ---- from processes here, and from other nodes ----
  void count(WorkerId worker, const actors::CountObjects& count);
  void reported(NodeId from, const actors::CountObjects& news);

  // Records what an object of this node contains. Fails if there is no room for so many references.
  Result<void> contain(const Object& outer, const std::vector<actors::ObjectKey>& inner);
  // A process here has read the object, and may read the `inner` ones from now on.
  void count_contents(const Object& object, const std::vector<Object>& inner, WorkerId worker);
  // Removes an object of this node regardless of its counts.
  void drop(const Object& object);

  void worker_gone(WorkerId worker);
  void end_job(JobId job);
  // Nodes with holders that are counted here.
  std::set<NodeId> nodes() const;
  void node_gone(NodeId node);
  // This node has another id: no node deals with it any more.
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
  std::map<WorkerId, NodeId> elsewhere_;          // nodes of holders elsewhere that are counted here; a node holds under its own id
  std::map<WorkerId, std::set<NodeId>> watched_;  // nodes to notify of a worker's end
};

}  // namespace shoal::scheduler
