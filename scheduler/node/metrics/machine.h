// Measurements of a node's machine and of a process. Reading files is separate from the conversion to metrics, which is pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "runtime/device/nvml/device_state.h"

namespace shoal::scheduler {

struct Machine {
  // In bytes, within the limits of control groups.
  std::uint64_t memory_total = 0, memory_available = 0;
  std::map<std::string, double> cpu_seconds;  // by mode: user, system, idle, iowait, ..
  double load1 = 0;
  // In bytes, of the file system with the session folder.
  std::uint64_t disk_total = 0, disk_free = 0;
  std::vector<runtime::DeviceState> gpus;  // empty without NVML
};

// Measures the machine. Figures that cannot be read stay at their defaults. May block as long as a GPU's driver does. `proc` is /proc,
// except in tests.
Machine read_machine(const std::string& folder, const std::string& proc = "/proc");
std::vector<actors::MetricFamily> metrics_of(const Machine& machine);

// The metrics of this process, under the names that Prometheus's client libraries use.
std::vector<actors::MetricFamily> process_metrics(const std::string& proc = "/proc");

}  // namespace shoal::scheduler
