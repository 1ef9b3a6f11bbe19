#include "scheduler/cli/verbs/device_checks.h"

#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scheduler/cli/inspection/inspection_rows.h"

namespace shoal::scheduler::cli {

namespace {

std::string memory_text(std::uint64_t used, std::uint64_t total) {
  return fmt::format("{} of {} used", bytes_text(used), bytes_text(total));
}

// Adds what a device's slices need.
void check_slices(const runtime::DeviceState& device, const std::string& visible, Check& out, std::vector<std::string>& fixes) {
  std::vector<std::string> names, texts;
  for (const auto& slice : device.slices) {
    names.push_back(slice.uuid);
    texts.push_back(fmt::format("{} ({})", slice.uuid, memory_text(slice.memory_used, slice.memory_total)));
  }
  if (texts.empty()) return;
  out.found += fmt::format("; {} MIG slices: {}", texts.size(), fmt::join(texts, ", "));
  if (visible.find("MIG-") != std::string::npos) return;
  out.verdict = '!';
  fixes.push_back(fmt::format("CUDA opens slices by their names: CUDA_VISIBLE_DEVICES={} shoal start ..", fmt::join(names, ",")));
}

void check_users(const runtime::DeviceState& device, const std::function<DeviceUser(unsigned)>& user, Check& out,
                 std::vector<std::string>& fixes) {
  std::vector<std::string> texts;
  bool others = false;
  for (const auto& holder : device.holders) {
    const auto found = user(holder.pid);
    others |= !found.shoal;
    const auto name = found.shoal ? "a worker of Shoal" : found.name.empty() ? "of another container" : found.name;
    texts.push_back(fmt::format("{} ({}{})", holder.pid, name, holder.bytes > 0 ? ", " + bytes_text(holder.bytes) : ""));
  }
  if (texts.empty()) return;
  out.found += fmt::format("; used by {} {}", texts.size() == 1 ? "process" : "processes", fmt::join(texts, ", "));
  if (!others) return;
  out.verdict = '!';
  fixes.push_back("end the processes that are not Shoal's, or hide the device from Shoal by CUDA_VISIBLE_DEVICES");
}

}  // namespace

DeviceUser find_device_user(unsigned pid) {
  const std::string process = fmt::format("/proc/{}/", pid);
  DeviceUser out;
  std::ifstream comm(process + "comm");
  std::getline(comm, out.name);
  std::ifstream environment(process + "environ");
  const std::string variables{std::istreambuf_iterator<char>(environment), {}};
  out.shoal = variables.find("SHOAL_WORKER_ID=") != std::string::npos;
  return out;
}

std::vector<Check> device_checks(const std::vector<runtime::DeviceState>& devices, const std::string& visible,
                                 const std::function<DeviceUser(unsigned)>& user) {
  std::vector<Check> out;
  for (const auto& device : devices) {
    Check check{fmt::format("gpu {}", device.index), '+', device.name.empty() ? "no name" : device.name, ""};
    std::vector<std::string> fixes;
    if (!device.uuid.empty()) check.found += ", " + device.uuid;
    if (device.memory_total > 0) check.found += ", " + memory_text(device.memory_used, device.memory_total);
    if (device.memory_total > 0 && !device.mig) check.found += fmt::format(", {:.0f} % busy", 100 * device.busy);
    check_slices(device, visible, check, fixes);
    check_users(device, user, check, fixes);
    for (const auto& fault : device.faults) {
      check.verdict = '!';
      check.found += "; " + fault.what;
      fixes.insert(fixes.begin(), fault.fix);
    }
    check.fix = fmt::format("{}", fmt::join(fixes, "; "));
    out.push_back(std::move(check));
  }
  return out;
}

}  // namespace shoal::scheduler::cli
