// The output of a node's workers: kept in the log book, and sent to the clients that follow their job.
//
// A follower gets all output of its job once and in order, also that of workers which ended before. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string_view>

#include "actors/wire/head_messages.h"
#include "actors/wire/node_messages.h"
#include "runtime/net/peer.h"
#include "scheduler/node/log_book.h"
#include "scheduler/node/workers.h"

namespace shoal::scheduler {

class WorkerLogs {
 public:
  // `max_ended`: ended workers whose output new followers still get.
  WorkerLogs(LogBook::Options options, std::size_t max_ended) : book_(std::move(options)), max_ended_(max_ended) {}

  const LogBook& book() const { return book_; }
  // Lines of a worker, with the marks of its calls; null: it is in the table no more.
  void write(const Worker* worker, WorkerId id, Launcher::Stream stream, std::string_view lines);
  void ended(const Worker& worker, const actors::WorkerUpdate& exit);

  // Sends the job's output so far, and from now on. `workers`: those that run.
  void follow(runtime::Peer& client, JobId job, const std::map<WorkerId, Worker>& workers);
  bool follows(std::uint64_t client, JobId job) const;
  // The client's connection is closed.
  void left(std::uint64_t client);

 private:
  struct Ended {
    actors::StartWorker spec;
    actors::WorkerUpdate exit;
  };
  void send_so_far(runtime::Peer& client, const actors::StartWorker& spec, pid_t pid) const;
  // `function`: the one that printed the lines, for a worker of remote functions.
  static void send(runtime::Peer& client, const actors::StartWorker& spec, std::string_view function, pid_t pid, Launcher::Stream stream,
                   std::string_view lines);

  LogBook book_;
  const std::size_t max_ended_;
  std::map<JobId, std::map<std::uint64_t, runtime::Peer*>> followers_;  // by number
  std::deque<Ended> ended_;
};

}  // namespace shoal::scheduler
