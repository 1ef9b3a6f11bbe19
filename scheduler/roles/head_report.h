// A head's reports to commands, in its session's folder: why its last start failed, and the stored rows that it could not use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "scheduler/state/set_aside.h"

namespace shoal::scheduler {

// Writes why a head of this session does not start; without an error, removes an earlier note. `session`: a folder. Best effort, since the
// reason may be a full disk.
void note_head_start(const std::string& session, const std::optional<Error>& failure);
// The reason of the last start, if that failed.
std::optional<Error> failed_head_start(const std::string& session);

// The folder with a file for each row that was set aside.
std::string set_aside_folder(const std::string& session);
// Keeps up to kMaxKept rows there, each as the bytes that the store had.
inline constexpr std::size_t kMaxKept = 1000;
void keep_set_aside(const std::string& session, const std::vector<SetAside>& rows);
std::size_t num_set_aside(const std::string& session);

}  // namespace shoal::scheduler
