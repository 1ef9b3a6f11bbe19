// Views of a run, as JSON for the dashboard's page (scheduler/web/page). Pure: a run and a request in, JSON out.
//
// A chart gets as many points as it requests, and then only what is new: an answer has a cursor, with which the next request begins. A
// cursor that no longer fits gets everything again, with `reset`. Tables come in pages, and as {"unchanged": true} while nothing is new.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/result.h"
#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

struct ViewRequest {
  std::string view;  // one of kViews
  std::map<std::string, std::string> query = {};
};

// The verdicts on the run, the worst first: an array, with the keys of docs/runs.md.
using Verdicts = nlohmann::json;

// Each view: what it contains. Then the keys of `query` that it takes.
//   summary      state, step, speed, goodput, last metrics and verdicts
//   steps        mean microseconds of a rank at each activity. points, from, to (steps), cursor
//   metrics      numbers of `report`, by step. points, from, to, cursor
//   memory       resident and free bytes, by time. points, offset and limit (of processes), cursor
//   workers      a row per process of a rank. offset, limit, sort, cursor
//   step         the spans of one step, and its critical path. number (0: the newest), offset and limit (of ranks)
//   events       what happened, the newest first. offset, limit, kind, contains, cursor
//   checkpoints  what was saved, the newest first. offset, limit, cursor
//   health       hosts and processes. offset, limit, cursor
inline constexpr std::string_view kViews[] = {"summary", "steps",  "metrics",     "memory", "workers",
                                              "step",    "events", "checkpoints", "health"};

// NotFound for another view, InvalidArgument for a query that is out of its bounds. `now_us`: the time of day.
Result<nlohmann::json> view_of(const Run& run, const Verdicts& verdicts, const ViewRequest& request, std::int64_t now_us);

// All views in one object, for a page without a server: at most 5,000 rows of a table, and the last 40 detailed steps.
nlohmann::json snapshot_of(const Run& run, const Verdicts& verdicts, std::int64_t now_us);

}  // namespace shoal::scheduler::runs
