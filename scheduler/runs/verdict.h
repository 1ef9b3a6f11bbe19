// The verdict: what slows or stopped a run, since which step, with evidence and the next command. docs/runs.md lists the codes.
//
// Pure: the same run and time give the same verdicts. A false alarm is worse than silence, so each trouble needs steps and time as
// evidence, and a margin above the noise that this run has shown. A verdict with the state kOk is none: it says that all is well, or notes
// what costs no time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

enum class Health { kOk, kSlow, kStopped, kFailed };

struct Verdict {
  std::string code;  // "straggler", ...; "ok" or "starting" without a trouble
  std::string sentence;
  Health state = Health::kOk;
  std::optional<int> rank = {};
  std::string host = {};
  std::uint64_t since_step = 0;     // 0: no step
  std::int64_t since_us = 0;        // time of day; 0: not known
  std::optional<double> cost = {};  // the fraction of the steps' time that the trouble takes
  std::vector<std::string> evidence = {};
  std::string next = {};  // a command, or what to do; "" for nothing
};

const char* health_text(Health health);  // "ok", ...
// True for what is worth a record and no trouble: `clock_jump`, `waiting`, `deaths`.
bool is_note(const Verdict& verdict);
// The verdict as JSON, with the keys of docs/runs.md.
nlohmann::json to_json(const Verdict& verdict);

// At least one; the first is the most important. `now_us`: the time of day of the run's last poll.
std::vector<Verdict> diagnose(const Run& run, std::int64_t now_us);

}  // namespace shoal::scheduler::runs
