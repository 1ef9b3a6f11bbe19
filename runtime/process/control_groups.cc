#include "runtime/process/control_groups.h"

#include <fstream>

namespace shoal::runtime {

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> out;
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      out.push_back({mounts, path, true});
      out.push_back({mounts + "/unified", path, true});
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      out.push_back({mounts + "/" + controller, path, false});
      if (controllers != controller) out.push_back({mounts + "/" + controllers, path, false});
    }
  }
  return out;
}

void visit_folders(const ControlGroup& group, const std::function<bool(const std::string&)>& visit) {
  for (std::string path = group.path; !visit(group.mount + path) && !path.empty();) {
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace shoal::runtime
