// Messages to nodes and about them, with their answers and notices, as plain values. head_messages.h has the messages to the head.
//
// Code that uses these messages never sees a Cap'n Proto reader or builder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/cluster/specs.h"
#include "actors/protocol/wire/from_bytes.h"

namespace shoal::actors {

struct StartWorker {
  WorkerId worker;
  JobId job;
  Launch launch;
  std::int32_t rank = -1;
  std::string label;
  // Units of GPUs that the worker may use; below 0: the node does not restrict its GPUs.
  std::int64_t gpu_units = -1;
  bool run_again = false;  // the worker's function or actor runs again if the worker dies
};
struct StopWorker {
  WorkerId worker;
  std::int32_t signal = 15;
  std::uint32_t grace_ms = 0;
};
struct KillHosted {
  WorkerId worker;
  pid_t pid = 0;
  ActorId actor;
  std::optional<Error> cause;
};
struct Attach {
  WorkerId worker;
  JobId job;
  std::string role;
};
struct Attached {
  NodeId node;
  JobId job;
  std::string head;
  std::string session;
  std::string host;
  WorkerId worker;
  std::int32_t member = -1;  // its place on the usage board (runtime/shm/usage_board.h)
  std::string spill = {};    // the folder for files of spilled objects
};
struct OpenArena {
  static constexpr std::uint64_t kAsItIs = ~std::uint64_t{0};  // as `bytes`: the memory exists already, of any size
  std::string key;
  std::uint64_t bytes = 0;
  JobId job;
  std::int32_t member = -1;
  bool lasting = false;  // the memory outlives the deaths of its holders
};
struct OpenedArena {
  bool created = false;
};
struct ArenaRef {
  std::string key;
  JobId job;
};
struct ObjectRef {
  ObjectId id;
  JobId job;
  std::uint64_t bytes = 0;
  WorkerId owner;                   // the process that puts or will put the object
  std::vector<ObjectKey> contains;  // objects to which the object has references
  NodeId home = {};                 // 0: the node that receives the message
};
struct PullObject {
  ObjectRef object;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct MakeRoom {
  std::uint64_t bytes = 0;
};
struct CountObjects {
  struct Change {
    ObjectKey object;
    // 0: the process that sends the message.
    WorkerId holder;
    std::int64_t by = 0;
    // 0: the node that receives the message.
    NodeId holder_node = {};
    enum class Kind : std::uint16_t {
      kCount,
      kCountContents,  // counts each object that `object` contains
      kWatch,          // the receiving node is to report the end of the holder
      kGone,           // the holder has ended
    };
    Kind kind = Kind::kCount;
  };
  // The number of changes that fit into one message.
  static constexpr std::size_t kMaxChanges = 8000;
  std::vector<Change> changes;
  std::uint64_t number = 0;
};
struct MeetNode {
  NodeId caller, called;
};
struct NodeRef {
  NodeId node;
};
struct NodeGone {
  NodeId node;
  Error cause;
};
struct LogLines {
  WorkerId worker;
  std::int32_t rank = -1;
  std::string label;
  std::uint16_t stream = 1;
  pid_t pid = 0;
};
struct FreePort {
  std::uint16_t port = 0;
};
struct ReadLog {
  WorkerId worker;
  std::uint16_t stream = 1;
  std::uint64_t tail_bytes = 0;
};

Bytes to_bytes(const StartWorker& m);
Bytes to_bytes(const StopWorker& m);
Bytes to_bytes(const KillHosted& m);
Bytes to_bytes(const Attach& m);
Bytes to_bytes(const Attached& m);
Bytes to_bytes(const OpenArena& m);
Bytes to_bytes(const OpenedArena& m);
Bytes to_bytes(const ArenaRef& m);
Bytes to_bytes(const ObjectRef& m);
Bytes to_bytes(const PullObject& m);
Bytes to_bytes(const CountObjects& m);
Bytes to_bytes(const MeetNode& m);
Bytes to_bytes(const NodeRef& m);
Bytes to_bytes(const NodeGone& m);
Bytes to_bytes(const MakeRoom& m);
Bytes to_bytes(const LogLines& m);
Bytes to_bytes(const FreePort& m);
Bytes to_bytes(const ReadLog& m);

}  // namespace shoal::actors
