// Measurements of a node's machine and of a process. Reading is here; the conversion to metrics is pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"

namespace shoal::scheduler {

struct Gpu {
  unsigned int index = 0;  // the driver's numbering
  std::string uuid, name;
  std::uint64_t memory_used = 0, memory_total = 0;  // bytes
  double busy = 0;                                  // share of the driver's last sample period, 0 to 1
};

struct Machine {
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes, within control groups' limits
  std::map<std::string, double> cpu_seconds;             // by mode: user, system, idle, iowait, ..
  double load1 = 0;
  std::uint64_t disk_total = 0, disk_free = 0;  // bytes, of the session folder's file system
  std::vector<Gpu> gpus;
};

// Leaves at its default what cannot be read. May block as long as a GPU's driver does. `proc`: /proc, except in tests.
Machine look_at_machine(const std::string& folder, const std::string& proc = "/proc");
std::vector<actors::MetricFamily> metrics_of(const Machine& machine);

// Metrics of this process, under the names that Prometheus' clients use.
std::vector<actors::MetricFamily> process_metrics(const std::string& proc = "/proc");

}  // namespace shoal::scheduler
