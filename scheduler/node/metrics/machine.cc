#include "scheduler/node/metrics/machine.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/process/memory_limit.h"

namespace shoal::scheduler {

using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;

namespace {

double ticks_per_second() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

std::string whole(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void add_gpus(const std::vector<runtime::DeviceState>& gpus, std::vector<MetricFamily>& out) {
  FamilyOf used(MetricKind::kGauge, "shoal_node_gpu_memory_used_bytes", "Memory of the GPU that is in use, by whomever.");
  FamilyOf total(MetricKind::kGauge, "shoal_node_gpu_memory_total_bytes", "Memory of the GPU.");
  FamilyOf busy(MetricKind::kGauge, "shoal_node_gpu_utilization_ratio",
                "Share of its driver's last sample period in which the GPU ran something.");
  FamilyOf processes(MetricKind::kGauge, "shoal_node_gpu_processes", "Processes that have a CUDA context on the GPU, Shoal's and others.");
  FamilyOf faults(MetricKind::kGauge, "shoal_node_gpu_fault", "1 for each fault of the GPU, which `shoal doctor` on its host explains.");
  FamilyOf slice_used(MetricKind::kGauge, "shoal_node_gpu_slice_memory_used_bytes", "Memory of the GPU's MIG slice that is in use.");
  FamilyOf slice_total(MetricKind::kGauge, "shoal_node_gpu_slice_memory_total_bytes", "Memory of the GPU's MIG slice.");
  const auto add = [](FamilyOf& family, std::uint64_t value, const actors::MetricSample::Labels& labels) {
    family.add(static_cast<double>(value), labels);
  };
  bool any_fault = false, any_slice = false;
  for (const auto& g : gpus) {
    const auto gpu = std::to_string(g.index);
    const actors::MetricSample::Labels labels = {{"gpu", gpu}, {"gpu_name", g.name}, {"uuid", g.uuid}};
    for (const auto& fault : g.faults) {
      any_fault = true;
      faults.add(1, {{"gpu", gpu}, {"kind", fault.kind}, {"uuid", g.uuid}});
    }
    if (g.memory_total == 0) continue;  // the device's memory cannot be read
    add(used, g.memory_used, labels);
    add(total, g.memory_total, labels);
    busy.add(g.busy, labels);
    add(processes, g.holders.size(), labels);
    for (const auto& slice : g.slices) {
      any_slice = true;
      const actors::MetricSample::Labels of_slice = {{"gpu", gpu}, {"slice_name", slice.name}, {"uuid", slice.uuid}};
      add(slice_used, slice.memory_used, of_slice);
      add(slice_total, slice.memory_total, of_slice);
    }
  }
  for (auto* family : {&used, &total, &busy, &processes}) out.push_back(std::move(*family));
  if (any_fault) out.push_back(std::move(faults));
  if (!any_slice) return;
  for (auto* family : {&slice_used, &slice_total}) out.push_back(std::move(*family));
}

}  // namespace

Machine read_machine(const std::string& folder, const std::string& proc) {
  Machine out;
  const auto memory = runtime::machine_memory();
  out.memory_total = memory.total;
  out.memory_available = memory.available;
  std::istringstream stat(whole(proc + "/stat"));
  std::string word;
  stat >> word;
  for (const char* mode : {"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}) {
    double ticks = 0;
    if (word == "cpu" && stat >> ticks) out.cpu_seconds[mode] = ticks / ticks_per_second();
  }
  std::istringstream(whole(proc + "/loadavg")) >> out.load1;
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) == 0) {
    out.disk_total = std::uint64_t{disk.f_blocks} * disk.f_frsize;
    out.disk_free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  }
  if (const auto nvml = runtime::NvmlApi::load()) out.gpus = runtime::read_devices(**nvml).value_or(std::vector<runtime::DeviceState>());
  return out;
}

std::vector<MetricFamily> metrics_of(const Machine& m) {
  const auto gauge = [](std::string name, std::string help, auto value) -> MetricFamily {
    return FamilyOf(MetricKind::kGauge, std::move(name), std::move(help)).add(static_cast<double>(value));
  };
  std::vector<MetricFamily> out = {
      gauge("shoal_node_memory_total_bytes", "Memory that the node may use.", m.memory_total),
      gauge("shoal_node_memory_available_bytes", "Of it, what is not in use.", m.memory_available),
      gauge("shoal_node_load1", "Processes that run or wait to, on average over a minute, of the whole machine.", m.load1),
      gauge("shoal_node_disk_total_bytes", "Size of the file system of the session's folder, where objects are spilled.", m.disk_total),
      gauge("shoal_node_disk_free_bytes", "What is free of it.", m.disk_free)};
  FamilyOf cpu(MetricKind::kCounter, "shoal_node_cpu_seconds_total", "What all CPUs of the machine have spent in each mode.");
  for (const auto& [mode, seconds] : m.cpu_seconds) cpu.add(seconds, {{"mode", mode}});
  out.push_back(std::move(cpu));
  if (!m.gpus.empty()) add_gpus(m.gpus, out);
  return out;
}
std::vector<MetricFamily> process_metrics(const std::string& proc) {
  // The process's state is the third field. It comes behind the command's name, which is in parentheses and may contain spaces.
  const std::string stat = whole(proc + "/self/stat");
  const auto behind = stat.rfind(')');
  if (behind == std::string::npos) return {};
  std::istringstream words(stat.substr(behind + 1));
  std::array<double, 22> field{};  // field[0] is the fourth field of the file
  std::string state;
  words >> state;
  for (double& f : field) words >> f;
  double booted = 0;
  std::istringstream machine(whole(proc + "/stat"));
  for (std::string line; std::getline(machine, line);) {
    if (line.starts_with("btime ")) booted = std::stod(line.substr(6));
  }
  std::error_code error;
  double fds = 0;
  for (std::filesystem::directory_iterator at(proc + "/self/fd", error), end; !error && at != end; at.increment(error)) ++fds;
  const auto gauge = [](std::string name, std::string help, double value) -> MetricFamily {
    return FamilyOf(MetricKind::kGauge, std::move(name), std::move(help)).add(value);
  };
  return {FamilyOf(MetricKind::kCounter, "process_cpu_seconds_total", "CPU time that the head's process has used.")
              .add((field[10] + field[11]) / ticks_per_second()),
          gauge("process_start_time_seconds", "When the head's process started, since 1970.", booted + field[18] / ticks_per_second()),
          gauge("process_virtual_memory_bytes", "Address space of the head's process.", field[19]),
          gauge("process_resident_memory_bytes", "Memory of the head's process.", field[20] * static_cast<double>(sysconf(_SC_PAGESIZE))),
          gauge("process_open_fds", "Descriptors of the head's process.", fds)};
}

}  // namespace shoal::scheduler
