// Writes into the first host's folder of a run what the processes of other hosts have appended to theirs.
//
// Messages come from other hosts: only names of the format are written, below folders that this object has made, and never through a link.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "actors/protocol/wire/run_files.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

class RunFilesCopy {
 public:
  explicit RunFilesCopy(std::string folder) : folder_(std::move(folder)) {}

  // InvalidArgument/RunFileRefused: the format has no such name or size, so the sender does not repeat the message. Other errors are the
  // disk's. Parts up to the one that failed are written. A process that this folder has from elsewhere stays as it is.
  Result<void> write(const actors::RunFiles& files, std::string_view bytes);

 private:
  struct Process {
    std::optional<std::uint64_t> sender;         // nullopt: the process writes here itself
    std::map<std::string, std::uint64_t> sizes;  // by file
  };
  Result<void> write_part(std::uint64_t sender, const actors::RunFilePart& part, std::string_view bytes);
  Result<Fd> folder_of(std::uint64_t sender, const std::string& name);

  const std::string folder_;
  std::map<std::string, Process> processes_;
};

}  // namespace shoal::scheduler::cli
