// Messages for inspection: objects and their holders, tasks that wait, run or ended, runtime environments, metrics. Answers are not stored;
// each counts the rows it omits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "actors/wire/from_bytes.h"
#include "runtime/core/fd.h"
#include "runtime/core/id.h"

namespace shoal::actors {

struct Inspect {
  enum class What : std::uint16_t { kObjects = 0, kTasks = 1, kEnvironments = 2, kMetrics = 3 };
  static constexpr std::size_t kMaxRows = 10'000;  // per process or node; further rows are only counted
  What what = What::kObjects;
};

enum class TaskState : std::uint16_t {
  kPendingArguments = 0,  // references among its arguments are not ready
  kPendingPlace = 1,      // no process for it yet
  kSubmitted = 2,         // sent to its process, or queued there
  kPendingTurn = 3,       // behind other calls of its actor
  kRunning = 4,
  kFinished = 5,
  kFailed = 6,
};
// Ray's names.
const char* to_string(TaskState state);

// A call of a method or of a remote function. Caller and number identify it in any process's answer.
struct TaskReport {
  std::uint64_t number = 0;
  WorkerId caller;
  ActorId actor;
  std::string method, function;
  TaskState state = TaskState::kPendingArguments;
  std::int64_t start_unix_us = 0, end_unix_us = 0;  // 0: not yet, or unknown
  std::string error;
};

enum class ObjectState : std::uint16_t { kAbsent = 0, kThere = 1, kFailed = 2 };

// Identifies a memory, equally in every process of its host, for ObjectReport; 0: unknown.
std::uint64_t which_memory(const Fd& memory);

struct ObjectReport {
  struct Holder {
    WorkerId worker;
    std::int64_t count = 0;
  };
  JobId job;
  ObjectId id;
  std::uint64_t bytes = 0;
  ObjectState state = ObjectState::kThere;
  bool spilled = false;
  std::uint32_t contained = 0;  // number of objects that contain it
  std::uint64_t memory = 0;     // its memory on the host (which_memory); 0: unknown
  std::vector<Holder> holders;  // a count of 0: the holder only has the bytes
};

struct ProcessReport {
  WorkerId worker;
  JobId job;
  pid_t pid = 0;
  std::string role;
  std::vector<TaskReport> tasks;
  std::vector<ObjectReport> objects;  // objects whose bytes it has
  std::uint64_t left_out = 0;
  std::optional<Error> silent;  // the reason why it did not answer
  std::vector<MetricFamily> metrics = {};
};

struct EnvironmentReport {
  std::string text;  // JSON
  std::uint32_t processes = 0;
};

struct NodeReport {
  NodeId node;
  pid_t pid = 0;
  std::vector<ObjectReport> objects;
  std::vector<EnvironmentReport> environments;
  std::vector<ProcessReport> processes;
  std::uint64_t left_out = 0;
  std::uint64_t kept_bytes = 0, spilled_bytes = 0, limit_bytes = 0;  // large values of all its processes
  std::vector<MetricFamily> metrics = {};                            // the node's and its processes'
};

struct ReportedMetrics {
  std::vector<MetricFamily> metrics;
};

Bytes to_bytes(const Inspect& m);
Bytes to_bytes(const ProcessReport& m);
Bytes to_bytes(const NodeReport& m);
Bytes to_bytes(const ReportedMetrics& m);
template <>
Result<Inspect> from_bytes(const Bytes& bytes);
template <>
Result<ProcessReport> from_bytes(const Bytes& bytes);
template <>
Result<NodeReport> from_bytes(const Bytes& bytes);
template <>
Result<ReportedMetrics> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
