// The parts that the views share: queries, pages, and facts of processes and events.
#pragma once

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/result.h"
#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs::views {

using nlohmann::json;

inline constexpr std::int64_t kDefaultPoints = 400, kMostPoints = 5'000, kDefaultLimit = 100, kMostLimit = 5'000;
inline constexpr std::size_t kMostMetrics = 64, kMostMemorySeries = 64;

// The query of a request. Its numbers have to be within bounds; the error is that of the first wrong one.
class Query {
 public:
  explicit Query(const std::map<std::string, std::string>& given) : given_(given) {}
  std::int64_t number(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most);
  std::string text(const char* name) const;
  const std::optional<Error>& wrong() const { return wrong_; }

 private:
  const std::map<std::string, std::string>& given_;
  std::optional<Error> wrong_;
};

// The page of a table that a request wants.
struct Page {
  explicit Page(Query& query)
      : offset(query.number("offset", 0, 0, 1'000'000'000)), limit(query.number("limit", kDefaultLimit, 1, kMostLimit)) {}
  std::int64_t offset, limit;
};
// Cuts `page` out of all `rows`. `version`: the cursor, by which a client asks whether anything has changed.
json paged(json rows, const Page& page, const std::string& version);
json unchanged(const std::string& version);

// The sum of Process::readings: if it has grown, files were read anew, and cursors with older numbers of rows no longer fit.
std::uint64_t readings_of(const Run& run);
std::uint64_t last_step(const Process& p);
std::int64_t last_time(const Process& p);
inline bool trains(const Process& p) { return p.rank() >= 0 && p.facts.role != "driver" && p.facts.role != "launcher"; }
inline bool lives(const Process& p) { return p.life == Life::kAlive || p.life == Life::kSilent; }
// The process with the most step rows, whose time of day stands for the run's; null without steps.
const Process* timekeeper(const Run& run);

struct TimedEvent {
  const Process* process;
  const Event* event;
};
// The wanted events of all processes, the newest first.
std::vector<TimedEvent> events_of(const Run& run, const std::function<bool(const Process&, const Event&)>& wanted);
// A cursor that changes with each new event.
std::string events_version(const Run& run);

// Fields of events, which may have any type.
std::int64_t integer(const json& fields, const char* key);
std::string text(const json& fields, const char* key);

// The views. views.h has their queries.
Result<json> steps_view(const Run& run, const json& verdicts, Query& query);
Result<json> metrics_view(const Run& run, Query& query);
Result<json> memory_view(const Run& run, Query& query);
Result<json> workers_view(const Run& run, Query& query, std::int64_t now_us);
Result<json> step_view(const Run& run, Query& query);
Result<json> events_view(const Run& run, Query& query);
Result<json> checkpoints_view(const Run& run, Query& query);
Result<json> health_view(const Run& run, Query& query);

}  // namespace shoal::scheduler::runs::views
