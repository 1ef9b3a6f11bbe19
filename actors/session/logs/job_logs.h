// The output of the job's workers, and the head's warnings, on this process's stdout and stderr. A driver may print them.
//
// The session watches its job, so that the head sends warnings and reports the nodes where the job has workers. Any thread, unless noted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/logs/line_printer.h"
#include "actors/session/logs/remote_logs.h"

namespace shoal::actors {

class JobLogs {
 public:
  struct Options {
    bool print = true;
    bool fold = false;  // on a terminal, show a line that several workers print once
  };
  // `exited` is called on the loop for each report of the end of a worker on another node.
  JobLogs(SessionLoop& loop, runtime::Network& network, HeadClient& head, NodeClient& node, const Identity& self, Options options,
          std::function<void(const WorkerUpdate&)> exited);
  JobLogs(const JobLogs&) = delete;
  JobLogs& operator=(const JobLogs&) = delete;

  // Prints workers' output from now on, if this process is a driver that prints. To be called after NodeClient::attach().
  Result<void> follow();
  // Returns when all that the job's workers have printed so far is printed here, unfinished lines as well. A driver calls this before it
  // leaves.
  Result<void> sync();
  // Only while the loop is owned.
  void close() { remote_.reset(); }

 private:
  bool prints() const { return self_.owns_job && options_.print; }
  void on_remote(const std::string& host, const runtime::Request& notice);
  void print(const std::string& host, const runtime::Message& lines);
  void warn_unless_drained(NodeId node, const std::string& text);

  SessionLoop& loop_;
  runtime::Network& network_;
  HeadClient& head_;
  NodeClient& node_;
  const Identity& self_;
  const Options options_;
  const std::function<void(const WorkerUpdate&)> exited_;
  std::optional<LinePrinter> printer_;  // made with the first lines
  std::unique_ptr<RemoteLogs> remote_;  // between follow() and close()
};

}  // namespace shoal::actors
