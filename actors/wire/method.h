// The numbers of the control protocol's methods.
#pragma once

#include <cstdint>

namespace shoal::actors {

// Methods by the process that answers them; methods.h declares their requests and replies. The numbers are part of the protocol: never
// reuse one.
enum class Method : std::uint16_t {
  // to the head
  kRegisterNode = 1,
  kHeartbeat = 2,     // notice, empty
  kWorkerUpdate = 3,  // notice
  kEndDriver = 4,     // notice, JobRef: a driver leaves in order
  kRegisterDriver = 5,
  kCreateGang = 6,     // answered when accepted, with FoundActor if get_if_exists found one; ActorUpdate notices follow
  kKillActor = 7,      // KillActor
  kHostActor = 8,      // answered when the gang is complete
  kSetAttributes = 9,  // notice
  kSubmitJob = 10,     // JobRef; JobUpdate notices follow
  kStopJob = 11,
  kList = 12,
  kStatus = 13,
  kShutdown = 14,
  kWatchJob = 15,         // JobRef: JobUpdate notices follow
  kWatchActor = 16,       // ActorRef: the row now, ActorUpdate notices follow
  kFindActor = 17,        // FindActor: likewise
  kCreateGroup = 18,      // answered when accepted; GroupUpdate notices follow
  kRemoveGroup = 19,      // notice, GroupRef
  kWatchGroup = 20,       // GroupRef: the row now, GroupUpdate notices follow
  kFindGroup = 21,        // FindActor: likewise
  kGetCreationSpec = 22,  // GetCreationSpec
  kWorkerBlocked = 23,    // notice
  kWorkerLeaves = 24,     // GetCreationSpec's body; a request, so that the head has it before the worker ends
  kWatchNode = 25,        // NodeRef: its row now, as ListReply; a NodeGone notice when it is dead
  kDeleteJob = 28,        // JobRef: forgets a job that has ended
  kSetNodeScheduling = 29,
  kSignCertificate = 40,  // from a host that joins
  kPutPackage = 41,       // a part for the head to store, parts in order; without data: whether the package is complete
  kGetPackage = 42,       // a part without data, answered with the part that begins at its offset, or with NotFound
  // from the head to a client, notices
  kActorUpdate = 30,  // ActorRow
  kJobUpdate = 31,    // JobRow
  kWarning = 32,
  kGroupUpdate = 33,  // GroupRow
  kNodeGone = 35,     // NodeGone
  kJobOnNode = 36,    // ListReply with one node: the watched job has workers there
  // from the head to a node, and from a node to its clients, a notice
  kHeads = 34,
  // to a node
  kStartWorker = 50,
  kStopWorker = 51,
  kEndJob = 52,  // JobRef: kill its processes, free its memory
  kKillHosted = 53,
  kAttach = 54,
  kOpenArena = 55,
  kDropArena = 56,
  kPutObject = 57,   // notice with a descriptor, or with an error as payload if there will be no object
  kGetObject = 58,   // waits for the object; answered with a descriptor and its contents as ObjectRef, counted for the asker
  kDropObject = 59,  // notice, ObjectRef
  kFollowLogs = 60,
  kReadLog = 61,
  kWorkerReady = 62,  // WorkerUpdate, from the worker itself
  kEndNode = 63,
  kSyncLogs = 65,      // answered after all lines that workers have printed by now
  kCountObjects = 66,  // notice; from another node a request
  kMakeRoom = 67,      // notice that an object needs memory; the node forwards it to its other clients
  kMoveObject = 68,    // notice, ObjectRef with a descriptor of its new place
  kFreePort = 64,      // an unused TCP port on the node's host
  kReadTaskLog = 76,
  kLastMetrics = 78,   // from a process that ends in order and waits for the answer
  kReadLogFile = 139,  // answered with text as payload
  // to a node, which forwards it to the object's home, which forwards it to the process that made the call. The process cancels the call
  // and answers, with an error if it refuses. Success if there is nothing left to cancel.
  kCancelResult = 77,
  // to a node, which asks its processes, and to the head for metrics only. Replies are payloads, since a body is too small: NodeReport of
  // a node, ProcessReport of a process, ReportedMetrics of the head.
  kInspect = 75,
  // from a node to another
  kMeetNode = 70,  // first message of a connection
  // waits for the object; answered with ObjectRef (total bytes, contents) and the part as payload, or a descriptor on one host
  kPullObject = 71,
  // from a node to a client, notices
  kWorkerExited = 80,  // WorkerUpdate
  kLogLines = 81,
  kKillHere = 82,  // KillHosted, to the process that hosts the actor
  // to an actor
  kCall = 100,
  kCancelCall = 101,  // notice, for a call that came over this connection
  // Notices with values of arguments that do not fit into their call. The call follows over the same connection, as kCallOfArguments.
  // `first`: the number of values sent before these; with 0 the receiver discards those that it has.
  kArguments = 122,
  kCallOfArguments = 123,
  // from an actor to its callers, notices
  kItem = 124,  // an item that a call yields, sent over the call's connection before its answer
  // Without a body, to each caller once the actor is made, before any other message. A caller that has not received it may assume that none
  // of its calls has begun.
  kMade = 125,
};

template <class Enum>
constexpr std::uint16_t number(Enum method) {
  return static_cast<std::uint16_t>(method);
}

}  // namespace shoal::actors
