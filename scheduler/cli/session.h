// A session of this host: its folder, and the start and end of its processes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/session/folder/folder.h"
#include "actors/session/folder/role.h"
#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// Creates a session with `token`, or with a new random token.
Result<actors::SessionFolder> new_session(const std::string& root, std::optional<runtime::Token> token = {});

// Starts a head, node or other role of this executable in a Unix session of its own, and waits for its report.
Result<actors::StartedRole> start_role(const Common& common, const actors::SessionFolder& folder, std::vector<std::string> words);

struct Stopped {
  int killed = 0;
  bool in_order = true;  // false: no head took the request, so nodes and heads elsewhere may go on
};

// Ends the session's processes: first by a request to the head that leads, then by signals. `force`: kills them at once.
Result<Stopped> stop_session(const actors::SessionFolder& folder, double grace_s, bool force = false);

}  // namespace shoal::scheduler::cli
