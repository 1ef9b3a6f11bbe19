#include "runtime/transport/ucx/rdma_devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace shoal::runtime {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) out.push_back(entry.path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<std::string> rdma_devices(const std::string& interface, const std::string& sys) {
  if (interface.empty()) return names_in(sys + "/class/infiniband");
  const std::string folder = sys + "/class/net/" + interface;
  int port = 0;  // the kernel counts a device's ports from 0 on, UCX from 1 on
  std::ifstream(folder + "/dev_port") >> port;
  auto out = names_in(folder + "/device/infiniband");
  for (auto& device : out) device += ":" + std::to_string(port + 1);
  return out;
}

std::string ucx_net_devices(const std::string& interface, bool chosen, const std::string& sys) {
  if (interface.empty()) return "";
  const auto devices = rdma_devices(interface, sys);
  if (devices.empty() && !chosen && !rdma_devices("", sys).empty()) return "";
  std::string out;
  for (const auto& device : devices) out += device + ",";
  return out + interface;
}

}  // namespace shoal::runtime
