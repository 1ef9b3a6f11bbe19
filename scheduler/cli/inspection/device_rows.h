// Rows of the nodes' GPUs, from the metrics that nodes report (scheduler/node/metrics/machine.h). Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "scheduler/cli/inspection/inspection_rows.h"

namespace shoal::scheduler::cli {

// A row per GPU, by host and number; `slices` has its MIG slices, `faults` the kinds of its faults.
nlohmann::json device_rows(const InspectionReply& reported);
// A row as a line for people.
std::string device_line(const nlohmann::json& row);

}  // namespace shoal::scheduler::cli
