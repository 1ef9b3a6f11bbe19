// The objects of a node and its replicas of other nodes' objects: puts, gets and moves by processes here, and reads by other nodes.
//
// An object lives at its home, the node of the process that made it, which counts references from all nodes (object_references.h). An
// object of another node is transferred once, as a replica that all processes of this node share (replicas.h). When memory is short,
// replicas are evicted, and objects that no process reads move into files (spiller.h). Loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "runtime/shm/usage_board.h"
#include "scheduler/node/objects/object_names.h"
#include "scheduler/node/objects/object_references.h"
#include "scheduler/node/objects/options.h"
#include "scheduler/node/objects/replicas.h"
#include "scheduler/node/objects/spiller.h"
#include "scheduler/node/objects/uncounted_bytes.h"
#include "scheduler/node/peers/chunk_sender.h"
#include "scheduler/node/peers/peer_nodes.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class Objects {
 public:
  using Options = ObjectOptions;
  struct Events {
    std::function<bool(WorkerId worker)> has_worker;  // true if the worker is on this node
    UncountedBytes::Board usage_board;
    std::function<void(std::uint64_t bytes)> want_room;           // asks all processes of this node to free memory
    std::function<std::size_t(std::uint64_t connection)> queued;  // returns the bytes in the queue of a connection
  };
  static constexpr std::size_t kMember = UncountedBytes::kMember;

  Objects(runtime::Clock& clock, runtime::Network& network, storage::MemoryTable& memory, const runtime::Log& log, Options options,
          PeerNodes::Options peer_nodes, std::function<runtime::Peer*()> head, Events events);

  // Sets this node's id. References that other nodes hold under an earlier id are lost.
  void start_as(NodeId self);
  PeerNodes& peer_nodes() { return peer_nodes_; }
  const storage::ReferenceTable& references() const { return references_.table(); }

  // ---- for processes here: `worker` of `job` ----
  void put(JobId job, WorkerId worker, const actors::ObjectRef& object, Result<Fd> memory);
  void get(JobId job, WorkerId worker, const actors::ObjectRef& object, runtime::Responder responder);
  void drop(JobId job, WorkerId worker, const actors::ObjectRef& object);
  // Replaces the memory of an object by a file of its size, which the process has written. The process must hold the object, or belong to
  // its job.
  void move(JobId job, WorkerId worker, const actors::ObjectKey& key, Fd file);
  void count(WorkerId worker, const actors::CountObjects& count) { references_.count(worker, count); }
  // Evicts replicas, and begins to move objects that no process reads into files.
  void make_room(std::uint64_t bytes);
  void worker_gone(WorkerId worker, const std::string& cause);
  void end_job(JobId job);

  // ---- for other nodes ----
  // Checks the first message of another node. Fails if this node has another id than the caller expects, or if the caller counts as dead.
  Result<void> met(const actors::MeetNode& meeting) const;
  void reported(NodeId from, const actors::CountObjects& counts) { references_.reported(from, counts); }
  void pull(const actors::PullObject& request, const runtime::Peer& by, runtime::Responder responder);
  ChunkSender& parts() { return parts_; }

 private:
  using Object = storage::ReferenceTable::Object;

  void node_gone(NodeId node, const Error& why);
  Result<void> may_come(JobId job, const actors::ObjectRef& object) const;
  // Makes the answer to a get, and counts the objects that the object contains for `worker`, which can now read them.
  runtime::Message handed_out(const Object& object, WorkerId worker, Fd memory);
  Result<ChunkSender::Part> part(const Object& object, std::uint64_t offset, std::uint64_t most);
  Result<Bytes> about(const Object& object, const Fd& memory) const;

  storage::MemoryTable& memory_;
  const runtime::Log log_;
  const Options options_;
  const Events events_;
  ObjectNames names_;
  UncountedBytes uncounted_;
  Spiller spiller_;
  ChunkSender parts_;
  PeerNodes peer_nodes_;
  ObjectReferences references_;
  Replicas replicas_;
};

}  // namespace shoal::scheduler
