// Reads the bytes that processes of this host append to a run's folder, in messages for the first host.
//
// The state is what the first host has confirmed. So a message that got lost is read anew, and nothing comes twice or not at all. Files
// that the processes remove before they were read are lost as single rows; the coarser levels, which are sent first, have their sums.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/run_files.h"
#include "runtime/core/fd.h"

namespace shoal::scheduler::cli {

class RunFilesSource {
 public:
  // Reads processes of the host `host`, since other hosts that share the folder send theirs, and leaves out those that began before
  // `since_us`: they are an earlier run's.
  RunFilesSource(std::string folder, const std::string& host, std::int64_t since_us);

  struct Batch {
    std::vector<actors::RunFilePart> parts;
    std::string bytes;
    bool more = false;  // there is more to read now
  };
  enum class Which {
    kAll,
    kLive,  // no rows, where the first host has no room for them
  };
  // Reads the bytes that the first host lacks, live pages first: `most`, or one item that is larger. Forgets an earlier batch that was not
  // confirmed.
  Batch read(std::size_t most, Which which = Which::kAll);
  // To be called once the first host has the last batch.
  void confirm();
  // Makes the next read() include processes that have been silent for long and are read seldom.
  void wake() { round_ = 0; }

 private:
  struct Process {
    std::string live;                           // the content of the live page that the first host has
    std::pair<ino_t, std::int64_t> facts = {};  // process.json: the file, and the time of its change
    std::map<std::string, std::uint64_t> files;
    int silent_rounds = 0;
  };
  void add(Batch& batch, const std::string& process, const std::string& file, std::uint64_t offset, std::string_view bytes,
           std::function<void()> confirmed);
  void read_state(Batch& batch, const Fd& folder, const std::string& name, Process& process, std::size_t most);
  void read_rows(Batch& batch, const Fd& folder, const std::string& name, Process& process, std::size_t most);
  void read_file(Batch& batch, const Fd& folder, const std::string& name, Process& process, const std::string& file, std::size_t most);

  const std::string folder_, names_begin_;
  const std::int64_t since_us_;
  std::map<std::string, Process> processes_;
  std::string last_;  // the process at which a message was full: the next one begins behind it, so that none waits for ever
  std::uint64_t round_ = 0;
  std::vector<std::function<void()>> confirmed_;
};

}  // namespace shoal::scheduler::cli
