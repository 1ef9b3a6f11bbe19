// Every method of the control protocol: its request, its reply, and whether it changes the head's state.
//
// Method (method.h) has the numbers. Each method is declared once, here. Two methods with the same number do not compile, since Declared<>
// would be specialized twice for it.
//
// method_table.h decodes requests and encodes replies by these declarations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/cancelling.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/inspection.h"
#include "actors/protocol/wire/joining.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/method.h"
#include "actors/protocol/wire/node_messages.h"
#include "actors/protocol/wire/packages.h"
#include "actors/protocol/wire/run_files.h"
#include "actors/protocol/wire/task_log.h"

namespace shoal::actors {

struct Arguments;
struct Call;
struct CancelCall;
struct Item;
class Value;

// A request or reply without content. A receiver does not read the body.
struct Empty {};
// A T that travels in the message's payload, because a body is too small for it.
template <class T>
struct InPayload {};
// A T that travels in the message's body, with a payload or descriptors beside it.
template <class T>
struct WithExtras {
  T body;
  Bytes payload;
  std::vector<Fd> fds;
};
// A std::optional<T> without a value travels as an empty body.

// The effect of a request on the state that the head stores.
enum class Effect {
  kNone,    // no change, or one that need not be stored, or that its sender repeats to the next head
  kChange,  // answered once the change is stored; refused while the head cannot store its state
  kFact,    // answered once it is stored, and never refused, since it reports what has happened
};

template <class RequestType, class ReplyType = Empty, Effect kItsEffect = Effect::kNone>
struct Signature {
  using Request = RequestType;
  using Reply = ReplyType;
  static constexpr Effect kEffect = kItsEffect;
};
template <class RequestType, class ReplyType = Empty>
using ChangingSignature = Signature<RequestType, ReplyType, Effect::kChange>;

// The declaration of a method: Declared<kMethod>::Request and ::Reply. A notice has no reply.
template <Method kMethod>
struct Declared;

#define SHOAL_METHOD(method, ...) \
  template <>                     \
  struct Declared<method> : __VA_ARGS__ {}

// Methods that the head answers.
SHOAL_METHOD(Method::kRegisterNode, Signature<RegisterNode, RegisteredNode>);  // a node sends it on each new connection
SHOAL_METHOD(Method::kHeartbeat, Signature<Empty>);                            // a notice or, with several heads, a request
SHOAL_METHOD(Method::kWorkerUpdate, Signature<WorkerUpdate>);
SHOAL_METHOD(Method::kEndDriver, Signature<JobRef>);
SHOAL_METHOD(Method::kRegisterDriver, ChangingSignature<RegisterDriver, RegisteredDriver>);
SHOAL_METHOD(Method::kCreateGang, ChangingSignature<GangSpec, std::optional<FoundActor>>);
SHOAL_METHOD(Method::kKillActor, ChangingSignature<KillActor>);
SHOAL_METHOD(Method::kHostActor, ChangingSignature<HostActor, HostedActor>);
SHOAL_METHOD(Method::kSetAttributes, Signature<SetAttributes>);
SHOAL_METHOD(Method::kSubmitJob, ChangingSignature<JobSpec, JobRef>);
SHOAL_METHOD(Method::kStopJob, ChangingSignature<StopJob>);
SHOAL_METHOD(Method::kList, Signature<ListRequest, ListReply>);
SHOAL_METHOD(Method::kStatus, Signature<std::optional<JobRef>, ClusterStatus>);  // with a job, the reply has resources only
SHOAL_METHOD(Method::kShutdown, Signature<Empty>);
SHOAL_METHOD(Method::kWatchJob, Signature<JobRef, JobRow>);
SHOAL_METHOD(Method::kWatchActor, Signature<ActorRef, ActorRow>);
SHOAL_METHOD(Method::kFindActor, Signature<FindActor, FoundActor>);
SHOAL_METHOD(Method::kCreateGroup, ChangingSignature<GroupSpec>);
SHOAL_METHOD(Method::kRemoveGroup, Signature<GroupRef>);
SHOAL_METHOD(Method::kWatchGroup, Signature<GroupRef, GroupRow>);
SHOAL_METHOD(Method::kFindGroup, Signature<FindActor, GroupRow>);
SHOAL_METHOD(Method::kGetCreationSpec, Signature<GetCreationSpec, FoundActor>);
SHOAL_METHOD(Method::kWorkerBlocked, Signature<WorkerBlocked>);  // a notice; a request where a worker takes its CPUs back. Not stored
SHOAL_METHOD(Method::kWorkerLeaves, Signature<GetCreationSpec, Empty, Effect::kFact>);
SHOAL_METHOD(Method::kWatchNode, Signature<NodeRef, ListReply>);
SHOAL_METHOD(Method::kDeleteJob, ChangingSignature<JobRef>);
SHOAL_METHOD(Method::kSetNodeScheduling, ChangingSignature<SetNodeScheduling>);
SHOAL_METHOD(Method::kSignCertificate, Signature<SignCertificate, SignedCertificate>);
SHOAL_METHOD(Method::kPutPackage, Signature<PackagePart, HasPackage>);
SHOAL_METHOD(Method::kGetPackage, Signature<PackagePart, PackagePart>);

// Notices from the head to a client.
SHOAL_METHOD(Method::kActorUpdate, Signature<ActorRow>);
SHOAL_METHOD(Method::kJobUpdate, Signature<JobRow>);
SHOAL_METHOD(Method::kWarning, Signature<Warning>);
SHOAL_METHOD(Method::kGroupUpdate, Signature<GroupRow>);
SHOAL_METHOD(Method::kNodeGone, Signature<NodeGone>);
SHOAL_METHOD(Method::kJobOnNode, Signature<ListReply>);
SHOAL_METHOD(Method::kHeads, Signature<Heads>);  // also from a node to its clients

// Requests from the head to a node.
SHOAL_METHOD(Method::kStartWorker, Signature<StartWorker>);
SHOAL_METHOD(Method::kStopWorker, Signature<StopWorker>);
SHOAL_METHOD(Method::kEndJob, Signature<JobRef>);
SHOAL_METHOD(Method::kKillHosted, Signature<KillHosted>);
SHOAL_METHOD(Method::kFreePort, Signature<Empty, FreePort>);
SHOAL_METHOD(Method::kLeaveDrained, Signature<Empty>);

// Methods that a node answers.
SHOAL_METHOD(Method::kAttach, Signature<Attach, WithExtras<Attached>>);
SHOAL_METHOD(Method::kOpenArena, Signature<OpenArena, WithExtras<OpenedArena>>);
SHOAL_METHOD(Method::kDropArena, Signature<ArenaRef>);
SHOAL_METHOD(Method::kPutObject, Signature<WithExtras<ObjectRef>>);
SHOAL_METHOD(Method::kGetObject, Signature<ObjectRef, WithExtras<ObjectRef>>);
SHOAL_METHOD(Method::kDropObject, Signature<ObjectRef>);
SHOAL_METHOD(Method::kFollowLogs, Signature<JobRef>);
SHOAL_METHOD(Method::kReadLog, Signature<ReadLog, InPayload<std::string>>);
SHOAL_METHOD(Method::kWorkerReady, Signature<WorkerUpdate>);
SHOAL_METHOD(Method::kEndNode, Signature<Empty>);
SHOAL_METHOD(Method::kSyncLogs, Signature<std::optional<JobRef>>);  // with a job, unfinished lines of its workers are printed, too
SHOAL_METHOD(Method::kCountObjects, Signature<CountObjects>);
SHOAL_METHOD(Method::kMakeRoom, Signature<MakeRoom>);
SHOAL_METHOD(Method::kMoveObject, Signature<WithExtras<ObjectRef>>);
SHOAL_METHOD(Method::kReadTaskLog, Signature<ReadTaskLog, InPayload<std::string>>);
SHOAL_METHOD(Method::kReadLogFile, Signature<ReadLogFile, InPayload<std::string>>);
SHOAL_METHOD(Method::kLastMetrics, Signature<InPayload<ReportedMetrics>>);
SHOAL_METHOD(Method::kCancelResult, Signature<CancelResult>);  // also from a node to another, and to the process that made the call
// A node replies with NodeReport, a process with ProcessReport, the head with ReportedMetrics.
SHOAL_METHOD(Method::kInspect, Signature<Inspect, InPayload<ReportedMetrics>>);

// Sent by a node to another node.
SHOAL_METHOD(Method::kMeetNode, Signature<MeetNode>);
SHOAL_METHOD(Method::kPullObject, Signature<PullObject, WithExtras<ObjectRef>>);

// Sent by a node to a client.
SHOAL_METHOD(Method::kWorkerExited, Signature<WorkerUpdate>);
SHOAL_METHOD(Method::kLogLines, Signature<WithExtras<LogLines>>);
SHOAL_METHOD(Method::kKillInProcess, Signature<KillHosted>);

// Sent to an actor's process, or by it to its callers (actors/value/call.h).
SHOAL_METHOD(Method::kCall, Signature<Call, Value>);
SHOAL_METHOD(Method::kCancelCall, Signature<CancelCall>);
SHOAL_METHOD(Method::kArguments, Signature<Arguments>);
SHOAL_METHOD(Method::kCallOfArguments, Signature<Call, Value>);
SHOAL_METHOD(Method::kItem, Signature<Item>);
SHOAL_METHOD(Method::kConstructed, Signature<Empty>);

// Sent by a further host of a run to the first one.
SHOAL_METHOD(Method::kRunFiles, Signature<WithExtras<RunFiles>>);

#undef SHOAL_METHOD

}  // namespace shoal::actors
