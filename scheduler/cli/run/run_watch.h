// Watches a run's folder while its script runs: prints each new verdict on the run, and records it there as an event.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/telemetry/telemetry.h"
#include "scheduler/runs/run_reader.h"
#include "scheduler/runs/verdict.h"

namespace shoal::scheduler::cli {

class RunWatch {
 public:
  explicit RunWatch(std::string folder) : folder_(std::move(folder)) {}

  // Reads what the ranks have written since the last call, at most four times a second. `now_us`: the time of day.
  void poll(std::int64_t now_us);

 private:
  void report(const runs::Verdict& verdict);

  const std::string folder_;
  std::optional<runs::RunReader> reader_;
  std::shared_ptr<runtime::Telemetry> telemetry_;  // this command's part of the folder, with its first verdict
  std::int64_t polled_us_ = 0;
  std::map<std::pair<std::string, int>, std::int64_t> seen_us_;  // by code and rank: when the trouble was there last
};

}  // namespace shoal::scheduler::cli
