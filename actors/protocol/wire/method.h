// The numbers of the control protocol's methods.
#pragma once

#include <cstdint>

namespace shoal::actors {

// The methods, grouped by the process that answers them. methods.h declares their requests and replies. The numbers are part of the
// protocol: a new method gets a new number, and no number is used again.
enum class Method : std::uint16_t {
  // Answered by the head.
  kRegisterNode = 1,
  // Proof that a node lives: a notice without a body or, with several heads, a request.
  kHeartbeat = 2,
  kWorkerUpdate = 3,  // a notice: the state of a worker has changed
  kEndDriver = 4,     // a notice, JobRef: a driver leaves in order
  kRegisterDriver = 5,
  // Answered once the head accepts the gang, with FoundActor if get_if_exists found an actor. ActorUpdate notices follow.
  kCreateGang = 6,
  kKillActor = 7,
  kHostActor = 8,      // places an actor in the sender's own process; answered once its gang is complete
  kSetAttributes = 9,  // a notice: attributes that an actor's row shows
  kSubmitJob = 10,     // answered with JobRef; JobUpdate notices follow
  kStopJob = 11,
  kList = 12,
  kStatus = 13,
  kShutdown = 14,
  kWatchJob = 15,     // JobRef: answered with the job's row; JobUpdate notices follow
  kWatchActor = 16,   // ActorRef: answered with the actor's row; ActorUpdate notices follow
  kFindActor = 17,    // FindActor: answered with FoundActor; ActorUpdate notices follow
  kCreateGroup = 18,  // answered once the head accepts the group; GroupUpdate notices follow
  kRemoveGroup = 19,  // a notice, GroupRef
  kWatchGroup = 20,   // GroupRef: answered with the group's row; GroupUpdate notices follow
  kFindGroup = 21,    // FindActor with a group's name: answered with its row; GroupUpdate notices follow
  kGetCreationSpec = 22,
  kWorkerBlocked = 23,  // a notice when a worker blocks or goes on; a request when it needs its CPUs back before it goes on
  kWorkerLeaves = 24,   // a worker announces its end, with the id in a GetCreationSpec. It waits for the answer before it ends
  kWatchNode = 25,      // NodeRef: answered with the node's row in a ListReply; a NodeGone notice follows when the node is dead
  kDeleteJob = 28,      // JobRef: makes the head forget a job that has ended
  kSetNodeScheduling = 29,
  kSignCertificate = 40,  // sent by a host that joins, which has no certificate yet
  // A part of a package for the head to store. Parts come in order; a part without data asks whether the package is complete.
  kPutPackage = 41,
  kGetPackage = 42,  // a part without data: answered with the part that begins at its offset, or with NotFound
  // Notices from the head to a client.
  kActorUpdate = 30,  // ActorRow: a watched actor has changed
  kJobUpdate = 31,    // JobRow: a watched job has changed
  kWarning = 32,
  kGroupUpdate = 33,  // GroupRow: a watched placement group has changed
  kNodeGone = 35,     // NodeGone: a watched node is dead
  kJobOnNode = 36,    // ListReply with one node, on which a watched job has workers
  // A notice from the head to a node, and from a node to its clients.
  kHeads = 34,
  // Answered by a node.
  kStartWorker = 50,
  kStopWorker = 51,
  kEndJob = 52,  // JobRef: the node kills the job's processes and frees its memory
  kKillHosted = 53,
  kAttach = 54,
  kOpenArena = 55,
  kDropArena = 56,
  // A notice with the object's descriptor or, if there will be no object, with the error as payload.
  kPutObject = 57,
  // Answered once the object is there, with its descriptor and an ObjectRef. The objects that it contains are then counted for the asker.
  kGetObject = 58,
  kDropObject = 59,  // a notice, ObjectRef: the node frees the object
  kFollowLogs = 60,
  kReadLog = 61,
  kWorkerReady = 62,  // WorkerUpdate, sent by the worker itself
  kEndNode = 63,
  kLeaveDrained = 140,  // a notice to a drained node: it ends, and its processes end because of the drain
  kSyncLogs = 65,       // answered after all lines that workers have printed so far
  kCountObjects = 66,   // a notice from a process, a request from another node
  kMakeRoom = 67,       // a notice that an object needs memory; the node forwards it to its other processes
  kMoveObject = 68,     // a notice, ObjectRef with a descriptor of the file that now holds the object
  kFreePort = 64,       // answered with an unused TCP port of the node's host
  kReadTaskLog = 76,
  kLastMetrics = 78,   // the last metrics of a process, which ends in order and waits for the answer
  kReadLogFile = 139,  // answered with the text as payload
  // Sent to a node, which forwards it to the object's home. The home forwards it to the process that made the call. The process cancels the
  // call and answers, with an error if it refuses. Succeeds if there is nothing left to cancel.
  kCancelResult = 77,
  // Sent to a node, which asks its processes, and for metrics to the head. Replies are payloads, since a body is too small: a NodeReport
  // from a node, a ProcessReport from a process, ReportedMetrics from the head.
  kInspect = 75,
  // Sent by a node to another node.
  kMeetNode = 70,  // the first message of a connection
  // Answered once the object is there: with ObjectRef (total bytes, contents) and the requested part as payload or, on one host, a
  // descriptor.
  kPullObject = 71,
  // Notices from a node to a client.
  kWorkerExited = 80,  // WorkerUpdate: a worker of the client's job has ended
  kLogLines = 81,
  kKillInProcess = 82,  // KillHosted: kill the actor that the receiving process hosts
  // Sent to an actor's process.
  kCall = 100,
  kCancelCall = 101,  // a notice: cancel a call that came over this connection
  // A notice with values of arguments that do not fit into their call, which follows over the same connection as kCallOfArguments. `first`:
  // the number of values sent before these. If it is 0, the receiver discards the values that it has.
  kArguments = 122,
  kCallOfArguments = 123,
  // Notices from an actor's process to its callers.
  kItem = 124,  // an item that a call yields; it precedes the call's answer on the same connection
  // A notice without a body to each caller once the actor is made, before any other message. A caller that has not received it may assume
  // that none of its calls has begun.
  kConstructed = 125,
  // Answered by `shoal run` on a run's first host, once it has written the parts in the payload.
  kRunFiles = 141,
};

template <class Enum>
constexpr std::uint16_t number(Enum method) {
  return static_cast<std::uint16_t>(method);
}

}  // namespace shoal::actors
