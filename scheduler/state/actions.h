// The actions of the cluster state, which the head performs in their order.
#pragma once

#include <string>
#include <variant>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/node_messages.h"

namespace shoal::scheduler {

struct StartWorkerOn {
  NodeId node;
  actors::StartWorker message;
};
struct StopWorkerOn {
  NodeId node;
  actors::StopWorker message;
};
struct EndJobOn {
  NodeId node;
  JobId job;
};
struct KillHostedOn {
  NodeId node;
  actors::KillHosted message;
};
struct Disconnect {  // a node that was given up: notifies its watchers. If it joins again under this id, it is refused (Unavailable/Fenced)
  NodeId node;
  Error cause;
};
struct EndNodeOn {  // asks a drained node to end
  NodeId node;
};
struct FindPortOn {  // asks the node for a free port; it answers with PortFound
  NodeId node;
  JobId job;
};
struct NotifyActor {  // sent to the actor's watchers
  actors::ActorRow row;
};
struct NotifyJob {
  actors::JobRow row;
};
struct NotifyGroup {  // sent to the group's watchers
  actors::GroupRow row;
};
struct AnswerHosted {  // the answer to the request behind ActorHosted
  ActorId actor;
  Result<actors::HostedActor> result;
};
struct Warn {  // sent to the job's watchers
  JobId job;
  std::string text;
};
struct ForgetJob {
  JobId job;
};
using Action = std::variant<StartWorkerOn, StopWorkerOn, EndJobOn, KillHostedOn, Disconnect, EndNodeOn, FindPortOn, NotifyActor, NotifyJob,
                            NotifyGroup, AnswerHosted, Warn, ForgetJob>;

// One line, for transcripts and logs: "StartWorker node=.. worker=.. rank=0".
std::string to_string(const Action& action);

}  // namespace shoal::scheduler
