// Sends to a run's first host what the processes of this host record, while the run trains and once more at its end.
//
// A thread of its own reads the folder, which may lie on a file system that does not answer. It sends one message at a time, several times
// a second, each as large as the link carries in that time. A first host that does not answer
// delays nothing but its own record of this host.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "actors/session/folder/credentials.h"
#include "runtime/loop/side_thread.h"

namespace shoal::scheduler::cli {

// Where a run's first host takes these messages, as its job's metadata say it.
struct RecordPlace {
  static constexpr const char* kMetadata = "shoal.io/run-record";

  std::string address;  // HOST:PORT
  std::string mark;     // content of the folder's file kMarkFile: a host that reads the same there shares the folder
  std::string folder;   // the run's, in which the processes of all hosts record

  std::string to_text() const;
  static std::optional<RecordPlace> parse(const std::string& text);
};
inline constexpr const char* kMarkFile = ".first-host";

class RunFilesSender {
 public:
  // `since_us`: when this host's part of the run began, in microseconds since 1970.
  RunFilesSender(const actors::Credentials& credentials, RecordPlace place, const std::string& host, std::int64_t since_us);
  // Ends the thread. If the file system or the network holds the thread up, does not wait for it: it runs on by itself.
  ~RunFilesSender();
  RunFilesSender(const RunFilesSender&) = delete;
  RunFilesSender& operator=(const RunFilesSender&) = delete;

  // Sends the last rows, which ended processes have written. Returns after `limit` at the latest.
  void finish(std::chrono::nanoseconds limit);

 private:
  class Work;
  std::shared_ptr<Work> work_;
  std::unique_ptr<runtime::SideThread> thread_;
};

}  // namespace shoal::scheduler::cli
