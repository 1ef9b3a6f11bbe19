// The folder of a run: the file by which the first host tells the others how to join, and the record of the run's end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::scheduler::cli {

// How to join the cluster of a run. It has the cluster's secret, so the file is the user's alone.
struct Meeting {
  std::string address;      // HOST:PORT of the head
  std::string token;        // in hexadecimal digits
  std::string fingerprint;  // identifies the certificate authority
  std::string run = {};     // distinguishes a run from earlier ones in its folder; "": the hosts met without a file
};

// Why and how a run ended.
struct ExitRecord {
  int exit_code = 0;
  std::string cause;        // "": it succeeded
  std::optional<int> rank;  // the rank that failed first
  bool retryable = false;   // the same command may succeed at another time
  std::string checkpoint;   // the newest one; "": none is known
  std::int64_t unix_s = 0;  // the time of the end
  std::string run = {};     // Meeting::run; "": the host ended before it had a part in the run
};

class RunFolder {
 public:
  // Makes the folder, with mode 0700. InvalidArgument if there is one already that belongs to another user, or to which others can write.
  static Result<RunFolder> make(const std::string& path);
  const std::string& path() const { return path_; }

  // Removes what an earlier run has left of its end: this host's record, and the first host also the name of the newest checkpoint. Other
  // hosts may yet write records of that run's end, which do not count from now on.
  void forget_earlier_run(std::uint32_t host);
  // From now on records of the end of the run `run` (Meeting::run) do not count, or count again.
  void leave_out(const std::string& run) { left_out_.insert(run); }
  void count_again(const std::string& run) { left_out_.erase(run); }

  // Moves what an earlier run has recorded into a folder of its own beside this one, PATH-1 or with the next free number. Returns its path;
  // "": there was no record.
  Result<std::string> set_earlier_run_aside();

  // Writes the meeting's file. Readers see no file, or the whole one.
  Result<void> write_meeting(const Meeting& meeting);
  // nullopt: it is not there yet. InvalidArgument if it belongs to another user, or others can read it.
  Result<std::optional<Meeting>> read_meeting() const;
  // Removes the file, unless it belongs to another run.
  void remove_meeting() const;

  // Writes a random text, by which hosts see whether they share this folder, and returns it (forwarding/sender.h).
  Result<std::string> write_mark() const;

  // `host`: the number of this host; the first one writes exit.json, the others exit-HOST.json.
  Result<void> write_exit(const ExitRecord& record, std::uint32_t host) const;
  // The record of the end that the host with this number has written. Records of earlier runs do not count: those that make() found, and
  // those of runs that are left out. Hosts' clocks may differ, so this compares files and runs, not times.
  std::optional<ExitRecord> read_exit(std::uint32_t host) const;
  // The path that shoal.checkpoint has left in the file `checkpoint`; "" without one.
  std::string newest_checkpoint() const;

 private:
  RunFolder(std::string path, Fd folder) : path_(std::move(path)), folder_(std::move(folder)) {}
  using FileId = std::pair<std::uint64_t, std::int64_t>;  // inode, and nanoseconds of the last change
  std::set<FileId> exits() const;
  void leave_out_recorded_run(std::uint32_t host);
  Result<void> write_whole(const std::string& name, const std::string& text) const;
  Fd open_file(const char* name) const;
  std::string path_;
  std::string run_;  // distinguishes this run's meeting from another's; "": none is written
  Fd folder_;        // stays the same folder if another process renames the path
  std::set<FileId> earlier_exits_;
  std::set<std::string> left_out_;
};

// Writes the record to `file` as torch's error files have it; for $TORCHELASTIC_ERROR_FILE.
Result<void> write_torchelastic_error(const ExitRecord& record, const std::string& file);

}  // namespace shoal::scheduler::cli
