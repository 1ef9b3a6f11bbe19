// Rows built from the reports of nodes and processes: one per task attempt, per object and holder, per runtime environment and node. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/wire/inspection.h"

namespace shoal::scheduler::cli {

// A node or process that did not answer, so that rows may be missing.
struct Silent {
  NodeId node;
  WorkerId worker;  // 0: the whole node
  pid_t pid = 0;
  std::string why;
};

struct InspectionReply {
  std::vector<actors::NodeReport> nodes;
  std::vector<Silent> silent;
  std::uint64_t left_out = 0;   // rows that processes and nodes left out of their reports
  std::uint64_t forgotten = 0;  // ended calls that processes keep no more; a remote function's call counts in its caller and its worker
  // Rows of the head: hosts of nodes, and actors.
  std::map<NodeId, std::string> hosts;
  std::map<ActorId, actors::ActorRow> actors;  // only for rows of tasks
};

nlohmann::json object_rows(const InspectionReply& reported);
// A row per attempt of a task, from the best report of it: callers report calls that wait, and processes the calls that they run. Running
// tasks come first, then ended ones, the latest first.
nlohmann::json task_rows(const InspectionReply& reported);
nlohmann::json environment_rows(const InspectionReply& reported);
// Task rows as a Chrome trace (JSON array format) for Perfetto and chrome://tracing. A node is a process of the trace. A worker has a lane
// for each call that it runs at the same time. `now_unix_us`: end of the spans that still run.
nlohmann::json trace_of(const nlohmann::json& tasks, std::int64_t now_unix_us);
nlohmann::json silent_rows(const InspectionReply& reported);
// A line per silent node or process, and one with the number of rows left out.
std::vector<std::string> silent_lines(const InspectionReply& reported);

// A size for people: 12, 3.4 KiB, 5.6 MiB.
std::string bytes_text(std::uint64_t bytes);

}  // namespace shoal::scheduler::cli
