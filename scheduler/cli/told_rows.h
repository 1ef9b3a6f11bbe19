// Rows of what nodes and processes told of themselves: a row per task, per object and who holds it, per runtime environment and node.
// Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/wire/inspection.h"

namespace shoal::scheduler::cli {

// Who did not answer, so that the rows may not be all there are.
struct Silent {
  NodeId node;
  WorkerId worker;  // 0: the whole node
  pid_t pid = 0;
  std::string why;
};

struct Told {
  std::vector<actors::ToldNode> nodes;
  std::vector<Silent> silent;
  std::uint64_t left_out = 0;  // rows beyond what a process or a node tells
  // What the head adds.
  std::map<NodeId, std::string> hosts;
  std::map<ActorId, actors::ActorRow> actors;  // for tasks
};

nlohmann::json object_rows(const Told& told);
// A row per attempt, whoever told of it: callers tell of what waits, processes of what they run. Those that run first, then what ended
// last.
nlohmann::json task_rows(const Told& told);
nlohmann::json environment_rows(const Told& told);
// Of task rows: a Chrome trace (JSON array format), which Perfetto and chrome://tracing show. A process per node, a lane per process and
// as many more as it ran calls at once. `now_unix_us`: where what runs ends for now.
nlohmann::json trace_of(const nlohmann::json& tasks, std::int64_t now_unix_us);
nlohmann::json silent_rows(const Told& told);
// "pid 4711 on node 1f..: it was not ready in time", a line each.
std::vector<std::string> silent_lines(const Told& told);

// How much is behind a number, for people: 12, 3.4 KiB, 5.6 MiB.
std::string bytes_text(std::uint64_t bytes);

}  // namespace shoal::scheduler::cli
