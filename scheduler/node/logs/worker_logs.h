// The output of a node's workers: it is kept in the log book, and sent to the clients that follow the workers' job.
//
// A client that follows a job gets all output of the job once and in order, also of workers that have ended. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string_view>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/node_messages.h"
#include "runtime/net/peer.h"
#include "scheduler/node/logs/log_book.h"
#include "scheduler/node/processes/workers.h"

namespace shoal::scheduler {

class WorkerLogs {
 public:
  // Limit of a stream's earlier output that a new follower gets, as one message if no call divides it
  // (actors/session/folder/open_network.h).
  static constexpr std::size_t kSoFarBytes = 16u << 20;

  // `max_ended`: number of ended workers whose output is kept for later followers.
  WorkerLogs(LogBook::Options options, std::size_t max_ended) : book_(std::move(options)), max_ended_(max_ended) {}

  const LogBook& book() const { return book_; }
  // Takes lines of a worker, which include the marks of its calls. `worker` is null if it has left the table of workers.
  void write(const Worker* worker, WorkerId id, Launcher::Stream stream, std::string_view lines);
  void ended(const Worker& worker, const actors::WorkerUpdate& exit);

  // Sends the client the job's output so far, and from now on all that follows. `workers`: the workers that have not ended. No effect if
  // the client follows the job already.
  Result<void> follow(runtime::Peer& client, JobId job, const std::map<WorkerId, Worker>& workers);
  bool follows(std::uint64_t client, JobId job) const;
  // To be called when a client's connection has closed.
  void left(std::uint64_t client);

 private:
  struct Ended {
    actors::StartWorker spec;
    actors::WorkerUpdate exit;
  };
  void send_so_far(runtime::Peer& client, const actors::StartWorker& spec, pid_t pid) const;
  // `function`: the remote function that printed the lines; "" for other workers.
  static void send(runtime::Peer& client, const actors::StartWorker& spec, std::string_view function, pid_t pid, Launcher::Stream stream,
                   std::string_view lines);

  LogBook book_;
  const std::size_t max_ended_;
  std::map<JobId, std::map<std::uint64_t, runtime::Peer*>> followers_;  // by job and number of the connection
  std::deque<Ended> ended_;
};

}  // namespace shoal::scheduler
