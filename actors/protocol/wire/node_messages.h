// Messages to nodes and about them, with their answers and notices, as plain values, with the methods that carry them (message.h).
// head_messages.h has the messages to the head.
//
// Code that uses these messages never sees a Cap'n Proto reader or builder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/cluster/specs.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/message.h"

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
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.launch, Launch);
    SHOAL_FIELD(v.rank, Rank);
    SHOAL_FIELD(v.label, Label);
    SHOAL_FIELD(v.gpu_units, GpuUnits);
    SHOAL_FIELD(v.run_again, RunAgain);
  }
};
SHOAL_MESSAGE(StartWorker, StartWorker);
struct StopWorker {
  WorkerId worker;
  std::int32_t signal = 15;
  std::uint32_t grace_ms = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.signal, Signal);
    SHOAL_FIELD(v.grace_ms, GraceMs);
    io.check(v);
  }
};
SHOAL_MESSAGE(StopWorker, StopWorker);
struct KillHosted {
  WorkerId worker;
  pid_t pid = 0;
  ActorId actor;
  std::optional<Error> cause;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_OPTIONAL_FIELD(v.cause, Cause);
  }
};
SHOAL_MESSAGE(KillHosted, KillHosted);
struct Attach {
  WorkerId worker;
  JobId job;
  std::string role;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.role, Role, RowText{"role"});
  }
};
SHOAL_MESSAGE(Attach, Attach);
struct Attached {
  NodeId node;
  JobId job;
  std::string head;
  std::string session;
  std::string host;
  WorkerId worker;
  std::int32_t member = -1;  // its place on the usage board (runtime/shm/usage_board.h)
  std::string spill = {};    // the folder for files of spilled objects
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.head, Head);
    SHOAL_FIELD(v.session, Session);
    SHOAL_FIELD(v.host, Host);
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.member, Member);
    SHOAL_FIELD(v.spill, Spill);
  }
};
SHOAL_MESSAGE(Attached, Attached);
struct OpenArena {
  static constexpr std::uint64_t kAsItIs = ~std::uint64_t{0};  // as `bytes`: the memory exists already, of any size
  std::string key;
  std::uint64_t bytes = 0;
  JobId job;
  std::int32_t member = -1;
  bool lasting = false;  // the memory outlives the deaths of its holders
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.key, Key);
    SHOAL_FIELD(v.bytes, Bytes);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.member, Member);
    SHOAL_FIELD(v.lasting, Lasting);
  }
};
SHOAL_MESSAGE(OpenArena, OpenArena);
struct OpenedArena {
  bool created = false;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.created, Created); }
};
SHOAL_MESSAGE(OpenedArena, OpenedArena);
struct ArenaRef {
  std::string key;
  JobId job;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.key, Key);
    SHOAL_FIELD(v.job, Job);
  }
};
SHOAL_MESSAGE(ArenaRef, ArenaRef);
struct ObjectRef {
  ObjectId id;
  JobId job;
  std::uint64_t bytes = 0;
  WorkerId owner;                   // the process that puts or will put the object
  std::vector<ObjectKey> contains;  // objects to which the object has references
  NodeId home = {};                 // 0: the node that receives the message
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.bytes, Bytes);
    SHOAL_FIELD(v.owner, Owner);
    SHOAL_FIELD(v.home, Home);
    SHOAL_OPTIONAL_FIELD(v.contains, Contains);
  }
};
SHOAL_MESSAGE(ObjectRef, ObjectRef);
struct PullObject {
  ObjectRef object;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.object, Object);
    SHOAL_FIELD(v.offset, Offset);
    SHOAL_FIELD(v.bytes, Bytes);
  }
};
SHOAL_MESSAGE(PullObject, PullObject);
struct MakeRoom {
  std::uint64_t bytes = 0;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.bytes, Bytes); }
};
SHOAL_MESSAGE(MakeRoom, MakeRoom);
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
    static void fields(auto& v, auto io) {
      SHOAL_FIELD(v.object, Object);
      SHOAL_FIELD(v.holder, Holder);
      SHOAL_FIELD(v.by, By);
      SHOAL_FIELD(v.holder_node, HolderNode);
      SHOAL_FIELD(v.kind, Kind, 4, "kind of change");
    }
  };
  // The number of changes that fit into one message.
  static constexpr std::size_t kMaxChanges = 8000;
  std::vector<Change> changes;
  std::uint64_t number = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.number, Number);
    SHOAL_FIELD(v.changes, Changes, kMaxList, "changes");
  }
};
SHOAL_MESSAGE(CountObjects, CountObjects);
struct MeetNode {
  NodeId caller, called;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.caller, Caller);
    SHOAL_FIELD(v.called, Called);
  }
};
SHOAL_MESSAGE(MeetNode, MeetNode);
struct LogLines {
  WorkerId worker;
  std::int32_t rank = -1;
  std::string label;
  std::uint16_t stream = 1;
  pid_t pid = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.rank, Rank);
    SHOAL_FIELD(v.label, Label);
    SHOAL_FIELD(v.stream, Stream);
    SHOAL_FIELD(v.pid, Pid);
  }
};
SHOAL_MESSAGE(LogLines, LogLines);
struct FreePort {
  std::uint16_t port = 0;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.port, Port); }
};
SHOAL_MESSAGE(FreePort, FreePort);
struct ReadLog {
  WorkerId worker;
  std::uint16_t stream = 1;
  std::uint64_t tail_bytes = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.stream, Stream);
    SHOAL_FIELD(v.tail_bytes, TailBytes);
  }
};
SHOAL_MESSAGE(ReadLog, ReadLog);

// Requests from the head to a node.
SHOAL_METHOD(kStartWorker, 50, Signature<StartWorker>);
SHOAL_METHOD(kStopWorker, 51, Signature<StopWorker>);
SHOAL_METHOD(kEndJob, 52, Signature<JobRef>);  // the node kills the job's processes and frees its memory
SHOAL_METHOD(kKillHosted, 53, Signature<KillHosted>);
SHOAL_METHOD(kFreePort, 64, Signature<Empty, FreePort>);  // answered with an unused TCP port of the node's host
SHOAL_METHOD(kLeaveDrained, 140, Signature<Empty>);       // a notice to a drained node: it ends, and its processes end because of the drain

// Methods that a node answers.
SHOAL_METHOD(kAttach, 54, Signature<Attach, WithExtras<Attached>>);
SHOAL_METHOD(kOpenArena, 55, Signature<OpenArena, WithExtras<OpenedArena>>);
SHOAL_METHOD(kDropArena, 56, Signature<ArenaRef>);
// A notice with the object's descriptor or, if there will be no object, with the error as payload.
SHOAL_METHOD(kPutObject, 57, Signature<WithExtras<ObjectRef>>);
// Answered once the object is there, with its descriptor. The objects that it contains are then counted for the asker.
SHOAL_METHOD(kGetObject, 58, Signature<ObjectRef, WithExtras<ObjectRef>>);
SHOAL_METHOD(kDropObject, 59, Signature<ObjectRef>);  // a notice: the node frees the object
SHOAL_METHOD(kFollowLogs, 60, Signature<JobRef>);
SHOAL_METHOD(kReadLog, 61, Signature<ReadLog, InPayload<std::string>>);
SHOAL_METHOD(kWorkerReady, 62, Signature<WorkerUpdate>);  // sent by the worker itself
SHOAL_METHOD(kEndNode, 63, Signature<Empty>);
// Answered after all lines that workers have printed so far. With a job, unfinished lines of its workers are printed, too.
SHOAL_METHOD(kSyncLogs, 65, Signature<std::optional<JobRef>>);
SHOAL_METHOD(kCountObjects, 66, Signature<CountObjects>);  // a notice from a process, a request from another node
SHOAL_METHOD(kMakeRoom, 67, Signature<MakeRoom>);  // a notice that an object needs memory; the node forwards it to its other processes
SHOAL_METHOD(kMoveObject, 68, Signature<WithExtras<ObjectRef>>);  // a notice with a descriptor of the file that now holds the object

// Sent by a node to another node.
SHOAL_METHOD(kMeetNode, 70, Signature<MeetNode>);  // the first message of a connection
// Answered once the object is there: with ObjectRef (total bytes, contents) and the requested part as payload or, on one host, a
// descriptor.
SHOAL_METHOD(kPullObject, 71, Signature<PullObject, WithExtras<ObjectRef>>);

// Notices from a node to a client.
SHOAL_METHOD(kWorkerExited, 80, Signature<WorkerUpdate>);  // a worker of the client's job has ended
SHOAL_METHOD(kLogLines, 81, Signature<WithExtras<LogLines>>);
SHOAL_METHOD(kKillInProcess, 82, Signature<KillHosted>);  // kill the actor that the receiving process hosts

}  // namespace shoal::actors
