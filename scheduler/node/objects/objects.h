// The objects of a node and its replicas of other nodes' objects: puts and gets, reference counts, and transfers.
//
// An object lives at its home, the node of the process that made it, which counts references from all nodes. Each node forwards the counts
// of its processes to the homes, in order, and reports the ends of processes. An object of another node comes over once, as a replica that
// all processes here share, and is dropped with the last reference here. Loop thread only.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/wire/node_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "runtime/shm/usage_board.h"
#include "scheduler/node/objects/chunk_sender.h"
#include "scheduler/node/objects/peer_nodes.h"
#include "storage/memory_table.h"
#include "storage/reference_table.h"
#include "storage/replica_table.h"

namespace shoal::scheduler {

class Objects {
 public:
  using Change = actors::CountObjects::Change;
  struct Options {
    storage::ReplicaTable::Options replicas;
    ChunkSender::Options parts;
    std::string spill_folder = {};  // for objects that are moved out of memory
    // Runs `work` in a thread of its own, then `then` on the loop. Empty: objects that only the node has are never moved into files.
    std::function<void(std::function<void()> work, std::function<void()> then)> write_aside = {};
    std::size_t max_references = 1 << 20;                  // objects that are counted, and objects that contain some
    std::size_t looks = 4096;                              // objects that are examined per request for room
    std::uint64_t uncounted_bytes = 128 << 10;             // smaller replicas are not counted
    runtime::Duration patience = std::chrono::seconds(5);  // wait for processes to make room
    runtime::Duration look = std::chrono::milliseconds(5);
    runtime::Duration asked_again = std::chrono::milliseconds(100);
    runtime::Duration left_again = std::chrono::milliseconds(500);
    std::size_t left_at_once = 500;
  };
  struct Events {
    std::function<bool(WorkerId worker)> has_worker;  // on this node
    std::function<std::optional<runtime::UsageBoard>()> membership_page;
    std::function<void(std::uint64_t bytes)> want_room;           // asks all processes here
    std::function<std::size_t(std::uint64_t connection)> queued;  // bytes queued in it
  };
  static constexpr std::size_t kMember = 0;  // this node's place on the board

  Objects(runtime::Clock& clock, runtime::Network& network, storage::MemoryTable& memory, const runtime::Log& log, Options options,
          PeerNodes::Options peer_nodes, std::function<runtime::Peer*()> head, Events events);
  // Gives up a file that is being written.
  ~Objects() { *over_ = true; }

  // Sets this node's id. References of other nodes under an earlier id are lost.
  void start_as(NodeId self);
  PeerNodes& peer_nodes() { return peer_nodes_; }
  const storage::ReferenceTable& references() const { return references_; }

  // ---- for processes here: `worker` of `job` ----
  void put(JobId job, WorkerId worker, const actors::ObjectRef& object, Result<Fd> memory);
  void get(JobId job, WorkerId worker, const actors::ObjectRef& object, runtime::Responder responder);
  void drop(JobId job, WorkerId worker, const actors::ObjectRef& object);
  // Moves an object into a file of its size that a process has written. The process has to hold the object, or be of its job.
  void move(JobId job, WorkerId worker, const actors::ObjectKey& key, Fd file);
  void count(WorkerId worker, const actors::CountObjects& count);
  // Frees replicas that no process reads, least recently used first; a later get fetches them again. Begins to move objects that only the
  // node has into files.
  void make_room(std::uint64_t bytes);
  void worker_gone(WorkerId worker, const std::string& cause);
  void end_job(JobId job);

  // ---- for other nodes ----
  // Fails when this node has another id, or the caller was given up.
  Result<void> met(const actors::MeetNode& meeting) const;
  void reported(NodeId from, const actors::CountObjects& news);
  void pull(const actors::PullObject& asked, const runtime::Peer& by, runtime::Responder responder);
  ChunkSender& parts() { return parts_; }

 private:
  using Object = storage::ReferenceTable::Object;
  // The memory of a replica, writable. Readers get another open file of it, with a shared lock, so an exclusive lock proves that none
  // reads.
  struct Copy {
    Fd memory;
    std::uint64_t counted = 0;  // bytes
    std::uint64_t last_used = 0;
  };
  // A transfer that waits for room.
  struct Room {
    Object object;
    std::uint64_t transfer = 0;
    std::uint64_t bytes = 0;
    std::function<void(Result<void>)> then;
    runtime::TimePoint since{};
    std::optional<runtime::TimePoint> asked{};
    runtime::UsageBoard::Usage before{};
  };

  Object own(const actors::ObjectKey& key) const;
  actors::ObjectKey key(const Object& object) const;
  std::vector<actors::ObjectKey> keys(const std::vector<Object>& objects) const;
  void apply(const Change& change, NodeId from);
  void count(const actors::ObjectKey& object, WorkerId holder, NodeId node, std::int64_t by);
  void count_contents(const Object& object, WorkerId holder, NodeId node);
  void watch(WorkerId holder, NodeId node);
  void free(const storage::ReferenceTable::Freed& freed);
  void node_gone(NodeId node, const Error& why);
  Result<void> may_come(JobId job, const actors::ObjectRef& object) const;
  Result<ChunkSender::Part> part(const Object& object, std::uint64_t offset, std::uint64_t most);
  Result<Bytes> about(const Object& object, const Fd& memory) const;

  void begin(const Object& object, WorkerId owner);
  void begun(const Object& object, Result<runtime::Message> answer);
  Result<void> fill(const Object& object, std::uint64_t bytes, const Bytes& first, std::vector<Object> contains);
  void pull_more();
  void pulled(const storage::ReplicaTable::Piece& piece, Result<runtime::Message> answer);
  void finish(const Object& object, Result<Fd> memory);
  void fail_replica(const Object& object, const Error& why);
  // Releases the memory of an object that is in no table any more.
  void release(const Object& object, const Error& why);
  void with_room(Room room);
  void look_for_room();
  std::optional<Result<void>> room_for(Room& room);
  void spill(std::uint64_t bytes);
  void spill_next();
  void count_room(std::int64_t by);
  void report_kept();
  static Result<Fd> for_readers(const Fd& memory);
  bool evict(std::uint64_t bytes);
  bool given_back(const Copy& copy);
  void look_after_left();

  runtime::Clock& clock_;
  storage::MemoryTable& memory_;
  const runtime::Log log_;
  const Options options_;
  const Events events_;
  NodeId self_;
  storage::ReferenceTable references_{options_.max_references};
  storage::ReplicaTable replicas_;
  ChunkSender parts_;
  PeerNodes peer_nodes_;
  storage::Inbox inbox_;
  std::map<WorkerId, NodeId> elsewhere_;          // nodes of holders elsewhere that are counted here; a node holds under its own id
  std::map<WorkerId, std::set<NodeId>> watched_;  // nodes to notify of a worker's end
  std::map<Object, Copy> copies_;
  std::deque<Copy> left_;  // dropped replicas that a process may still read
  std::uint64_t kept_bytes_ = 0, next_use_ = 1;
  std::deque<Room> resource_index_;
  runtime::Timer looking_, looking_at_left_;
  runtime::TimePoint looked_{};  // last look for room
  // Bytes to move, objects that may still be examined for that, and the reported bytes in files.
  std::uint64_t to_spill_ = 0, reported_filed_ = 0;
  std::size_t looks_ = 0;
  bool spilling_ = false;
  std::optional<runtime::TimePoint> in_vain_;  // last time that nothing could be moved
  std::string no_file_;                        // last error of a spill file
  std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace shoal::scheduler
