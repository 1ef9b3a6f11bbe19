// What the machine of a node, and a process, has and uses, as measurements. Reading is here; what follows from it is pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"

namespace shoal::scheduler {

struct Gpu {
  unsigned int index = 0;  // as the driver counts
  std::string uuid, name;
  std::uint64_t memory_used = 0, memory_total = 0;  // bytes
  double busy = 0;                                  // share of the driver's last sample period, 0 to 1
};

struct Machine {
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes, as control groups have it
  std::map<std::string, double> cpu_seconds;             // by mode: user, system, idle, iowait, ..
  double load1 = 0;
  std::uint64_t disk_total = 0, disk_free = 0;  // bytes, where the session's folder lies
  std::vector<Gpu> gpus;
};

// What cannot be read is left as it is. May take long: of GPUs as long as their driver does. `proc`: /proc, but for tests.
Machine look_at_machine(const std::string& folder, const std::string& proc = "/proc");
std::vector<actors::MetricFamily> metrics_of(const Machine& machine);

// Of this process, under the names that Prometheus' clients give them.
std::vector<actors::MetricFamily> process_metrics(const std::string& proc = "/proc");

}  // namespace shoal::scheduler
