#include "actors/protocol/cluster/rows.h"

namespace shoal::actors {

const char* to_string(ActorState state) {
  switch (state) {
    case ActorState::kPending:
      return "PENDING";
    case ActorState::kStarting:
      return "STARTING";
    case ActorState::kAlive:
      return "ALIVE";
    case ActorState::kDead:
      return "DEAD";
    case ActorState::kRestarting:
      return "RESTARTING";
  }
  return "?";
}

const char* to_string(JobState state) {
  switch (state) {
    case JobState::kPending:
      return "PENDING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kStopped:
      return "STOPPED";
  }
  return "?";
}

const char* to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "STARTING";
    case WorkerState::kRunning:
      return "RUNNING";
    case WorkerState::kExited:
      return "EXITED";
    case WorkerState::kStopped:
      return "STOPPED";
  }
  return "?";
}

const char* to_string(GroupState state) {
  switch (state) {
    case GroupState::kPending:
      return "PENDING";
    case GroupState::kCreated:
      return "CREATED";
    case GroupState::kRescheduling:
      return "RESCHEDULING";
    case GroupState::kRemoved:
      return "REMOVED";
  }
  return "?";
}

const char* state_text(const NodeRow& row) {
  if (row.state == NodeState::kDead) return "DEAD";
  switch (row.scheduling()) {
    case NodeScheduling::kSchedulable:
      return "ALIVE";
    case NodeScheduling::kCordoned:
      return "CORDONED";
    case NodeScheduling::kDraining:
      return "DRAINING";
  }
  return "?";
}

const char* to_string(NodeState state) { return state == NodeState::kAlive ? "ALIVE" : "DEAD"; }

}  // namespace shoal::actors
