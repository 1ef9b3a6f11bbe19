// The control groups of this process, by which a container or a batch system limits it. Versions 1 and 2.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shoal::runtime {

// A group that may have the limits of one controller.
struct ControlGroup {
  std::string mount, path;  // the group's folder is `mount` + `path`; the path may be empty
  bool version2 = true;
};

// Returns this process's groups for a controller: "cpu", "memory". `root`: root of the file system, for tests.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root = "");

// Calls `visit` with the folders of the group and its ancestors, innermost first, until it returns true. In a container the path may be the
// host's, and few or none of its folders are visible.
void visit_folders(const ControlGroup& group, const std::function<bool(const std::string& folder)>& visit);

}  // namespace shoal::runtime
