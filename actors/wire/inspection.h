// What nodes and their processes tell of themselves when somebody asks: objects and who holds them, calls that wait, run and ran, runtime
// environments, measurements. As messages.h, of which its method is one. Nobody keeps these answers; each says what it had to leave out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "actors/wire/messages.h"
#include "runtime/core/fd.h"

namespace shoal::actors {

// To a node, answered with ToldNode; from it to its processes, answered with ToldProcess; to the head (of metrics), with ToldMetrics.
// Answers are payloads: a body is too small.
inline constexpr auto kInspect = static_cast<Method>(75);
// To a node, from a process that ends in order and waits for the answer: ToldMetrics.
inline constexpr auto kLastMetrics = static_cast<Method>(78);

struct Inspect {
  enum class What : std::uint16_t { kObjects = 0, kTasks = 1, kEnvironments = 2, kMetrics = 3 };
  static constexpr std::size_t kMaxRows = 10'000;  // of one process or node: what is more is counted
  What what = What::kObjects;
};

enum class TaskState : std::uint16_t {
  kPendingArguments = 0,  // references among its arguments are not there yet
  kPendingPlace = 1,      // there is no process for it yet
  kSubmitted = 2,         // it is on its way to its process, or waits there
  kPendingTurn = 3,       // its actor runs others
  kRunning = 4,
  kFinished = 5,
  kFailed = 6,
};
// As Ray calls them.
const char* to_string(TaskState state);

// A call of a method or of a remote function. Caller and number say which one it is, whoever tells of it.
struct ToldTask {
  std::uint64_t number = 0;
  WorkerId caller;
  ActorId actor;
  std::string method, function;
  TaskState state = TaskState::kPendingArguments;
  std::int64_t start_unix_us = 0, end_unix_us = 0;  // 0: not yet, or not known
  std::string error;
};

enum class ObjectState : std::uint16_t { kAbsent = 0, kThere = 1, kFailed = 2 };

// Of a ToldObject: the same in every process of the host that has it. 0: that cannot be told.
std::uint64_t which_memory(const Fd& memory);

struct ToldObject {
  struct Holder {
    WorkerId worker;
    std::int64_t count = 0;
  };
  JobId job;
  ObjectId id;
  std::uint64_t bytes = 0;
  ObjectState state = ObjectState::kThere;
  bool spilled = false;
  std::uint32_t contained = 0;  // in so many objects
  std::uint64_t memory = 0;     // which one of its host it lies in; 0: not known
  std::vector<Holder> holders;  // a count of 0: it only has the bytes
};

struct ToldProcess {
  WorkerId worker;
  JobId job;
  pid_t pid = 0;
  std::string role;
  std::vector<ToldTask> tasks;
  std::vector<ToldObject> objects;  // whose bytes it has
  std::uint64_t left_out = 0;
  std::optional<Error> silent;  // it told nothing
  std::vector<MetricFamily> metrics = {};
};

struct ToldEnvironment {
  std::string text;  // JSON
  std::uint32_t processes = 0;
};

struct ToldNode {
  NodeId node;
  pid_t pid = 0;
  std::vector<ToldObject> objects;
  std::vector<ToldEnvironment> environments;
  std::vector<ToldProcess> processes;
  std::uint64_t left_out = 0;
  std::uint64_t kept_bytes = 0, spilled_bytes = 0, limit_bytes = 0;  // of all its processes' large values
  std::vector<MetricFamily> metrics = {};                            // of the node and of its processes
};

struct ToldMetrics {
  std::vector<MetricFamily> metrics;
};

Bytes to_bytes(const Inspect& m);
Bytes to_bytes(const ToldProcess& m);
Bytes to_bytes(const ToldNode& m);
Bytes to_bytes(const ToldMetrics& m);
template <>
Result<Inspect> from_bytes(const Bytes& bytes);
template <>
Result<ToldProcess> from_bytes(const Bytes& bytes);
template <>
Result<ToldNode> from_bytes(const Bytes& bytes);
template <>
Result<ToldMetrics> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
