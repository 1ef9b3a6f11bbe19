// Runs as text for people, and as the JSON of --json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/runs/difference.h"
#include "scheduler/runs/run.h"
#include "scheduler/runs/summary.h"
#include "scheduler/runs/verdict.h"

namespace shoal::scheduler::cli {

// A run, its numbers and its verdicts at a time of day.
struct Diagnosis {
  runs::Summary summary;
  std::vector<runs::Verdict> verdicts;
};
Diagnosis diagnosed(const runs::Run& run, std::int64_t now_us);

// shoal.run/1, without `schema`
nlohmann::json run_json(const runs::Run& run, const Diagnosis& diagnosis);

// "train  running  4 ranks on 2 hosts, step 812, 12 ms per step", in escaped text.
std::string headline(const runs::Run& run, const Diagnosis& diagnosis);
// The verdicts with evidence and next command, a line each.
std::string verdict_lines(const std::vector<runs::Verdict>& verdicts, std::size_t most);
std::string bar(double part);  // ten characters

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
// A row per rank, at most `most` of them: those that wait least first, if there are more.
Table rank_table(const runs::Summary& summary, std::size_t most);
Table difference_table(const std::vector<runs::Compared>& compared);
// The newest events of all processes, the newest last.
Table event_table(const runs::Run& run, std::size_t most);

std::string local_time_text(std::int64_t unix_us);

}  // namespace shoal::scheduler::cli
