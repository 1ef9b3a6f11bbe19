// Takes on a run's first host what the processes of other hosts record, and writes it into the run's folder.
//
// It listens with the cluster's TLS and token, as nodes and workers do. A thread of its own writes, since the folder may lie on a file
// system that does not answer.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "actors/session/folder/credentials.h"
#include "runtime/core/result.h"
#include "runtime/loop/side_thread.h"

namespace shoal::scheduler::cli {

class RunFilesReceiver {
 public:
  static Result<std::unique_ptr<RunFilesReceiver>> start(const actors::Credentials& credentials, const std::string& folder);
  // Ends the thread. If the file system holds the thread up, does not wait for it: it runs on by itself.
  ~RunFilesReceiver();
  RunFilesReceiver(const RunFilesReceiver&) = delete;
  RunFilesReceiver& operator=(const RunFilesReceiver&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT
  // True while a host sends: it has sent within the last two seconds, and has not hung up.
  bool receives() const;

 private:
  class Work;
  RunFilesReceiver(std::shared_ptr<Work> work, std::string address);
  std::shared_ptr<Work> work_;
  std::string address_;
  std::unique_ptr<runtime::SideThread> thread_;
};

}  // namespace shoal::scheduler::cli
