// Messages for inspection: objects and their holders, tasks that wait, run or ended, runtime environments, metrics. Answers are made on
// request and not stored; each has the number of rows that it omits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "actors/protocol/wire/message.h"
#include "runtime/core/fd.h"
#include "runtime/core/id.h"

namespace shoal::actors {

struct Inspect {
  enum class What : std::uint16_t { kObjects = 0, kTasks = 1, kEnvironments = 2, kMetrics = 3 };
  static constexpr std::size_t kMaxRows = 10'000;  // limit for one process or node; further rows are only counted
  What what = What::kObjects;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.what, What, 4, "kind of inspection"); }
};
SHOAL_MESSAGE(Inspect, Inspect);

enum class TaskState : std::uint16_t {
  kPendingArguments = 0,  // references among its arguments are not ready
  kPendingPlace = 1,      // no process is there for the call yet
  kSubmitted = 2,         // sent to its process, which may not have begun it
  kPendingTurn = 3,       // waits behind other calls of its actor
  kRunning = 4,
  kFinished = 5,
  kFailed = 6,
};
// The names that Ray gives to these states.
const char* to_string(TaskState state);

// A call of a method or of a remote function. The same call has the same caller and number in the answer of every process.
struct TaskReport {
  std::uint64_t number = 0;
  WorkerId caller;
  ActorId actor;
  std::string method, function;
  TaskState state = TaskState::kPendingArguments;
  // 0: the call has not begun or ended yet, or the time is unknown.
  std::int64_t start_unix_us = 0, end_unix_us = 0;
  std::string error;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.number, Number);
    SHOAL_FIELD(v.caller, Caller);
    SHOAL_FIELD(v.actor, Actor);
    SHOAL_FIELD(v.method, Method);
    SHOAL_FIELD(v.function, Function);
    SHOAL_FIELD(v.state, State, 7, "state of a task");
    SHOAL_FIELD(v.start_unix_us, StartUnixUs);
    SHOAL_FIELD(v.end_unix_us, EndUnixUs);
    SHOAL_FIELD(v.error, Error);
  }
};

enum class ObjectState : std::uint16_t { kAbsent = 0, kThere = 1, kFailed = 2 };

// A number for a shared memory, which is the same in every process of the host; 0: unknown.
std::uint64_t which_memory(const Fd& memory);

struct ObjectReport {
  struct Holder {
    WorkerId worker;
    std::int64_t count = 0;
    static void fields(auto& v, auto io) {
      SHOAL_FIELD(v.worker, Worker);
      SHOAL_FIELD(v.count, Count);
    }
  };
  JobId job;
  ObjectId id;
  std::uint64_t bytes = 0;
  ObjectState state = ObjectState::kThere;
  bool spilled = false;
  std::uint32_t contained = 0;  // number of objects that contain a reference to it
  std::uint64_t memory = 0;     // its which_memory(), by which rows of one memory are joined; 0: unknown
  // A holder with a count of 0 has the bytes, but no reference.
  std::vector<Holder> holders;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.bytes, Bytes);
    SHOAL_FIELD(v.state, State, 3, "state of an object");
    SHOAL_FIELD(v.spilled, Spilled);
    SHOAL_FIELD(v.contained, Contained);
    SHOAL_FIELD(v.memory, Memory);
    SHOAL_FIELD(v.holders, Holders, kMaxList, "holders");
  }
};

struct ProcessReport {
  WorkerId worker;
  JobId job;
  pid_t pid = 0;
  std::string role;
  std::vector<TaskReport> tasks;
  std::vector<ObjectReport> objects;  // objects whose bytes this process has
  std::uint64_t left_out = 0;
  std::optional<Error> silent;  // the reason why the process did not answer
  std::vector<MetricFamily> metrics = {};
  // Number of ended calls that are not among `tasks`, since a process keeps only the last ones.
  std::uint64_t forgotten = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.worker, Worker);
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.role, Role);
    SHOAL_FIELD(v.tasks, Tasks);
    SHOAL_FIELD(v.objects, Objects);
    SHOAL_FIELD(v.left_out, LeftOut);
    SHOAL_OPTIONAL_FIELD(v.silent, Cause);
    SHOAL_FIELD(v.metrics, Metrics);
    SHOAL_FIELD(v.forgotten, Forgotten);
  }
};
SHOAL_MESSAGE(ProcessReport, ProcessReport);

struct EnvironmentReport {
  std::string text;  // the runtime environment, as JSON
  std::uint32_t processes = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.text, Text);
    SHOAL_FIELD(v.processes, Processes);
  }
};

struct NodeReport {
  NodeId node;
  pid_t pid = 0;
  std::vector<ObjectReport> objects;
  std::vector<EnvironmentReport> environments;
  std::vector<ProcessReport> processes;
  std::uint64_t left_out = 0;
  // The large values of all processes of the node together.
  std::uint64_t kept_bytes = 0, spilled_bytes = 0, limit_bytes = 0;
  // The metrics of the node and of its processes.
  std::vector<MetricFamily> metrics = {};
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.node, Node);
    SHOAL_FIELD(v.pid, Pid);
    SHOAL_FIELD(v.objects, Objects);
    SHOAL_FIELD(v.environments, Environments);
    SHOAL_FIELD(v.processes, Processes);
    SHOAL_FIELD(v.left_out, LeftOut);
    SHOAL_FIELD(v.kept_bytes, KeptBytes);
    SHOAL_FIELD(v.spilled_bytes, SpilledBytes);
    SHOAL_FIELD(v.limit_bytes, LimitBytes);
    SHOAL_FIELD(v.metrics, Metrics);
  }
};
SHOAL_MESSAGE(NodeReport, NodeReport);

struct ReportedMetrics {
  std::vector<MetricFamily> metrics;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.metrics, Metrics); }
};
SHOAL_MESSAGE(ReportedMetrics, ReportedMetrics);

// Sent to a node, which asks its processes, and for metrics to the head. Replies are payloads, since a body is too small: a NodeReport
// from a node, a ProcessReport from a process, ReportedMetrics from the head.
SHOAL_METHOD(kInspect, 75, Signature<Inspect, InPayload<ReportedMetrics>>);
// To a node: the last metrics of a process, which ends in order and waits for the answer.
SHOAL_METHOD(kLastMetrics, 78, Signature<InPayload<ReportedMetrics>>);

}  // namespace shoal::actors
