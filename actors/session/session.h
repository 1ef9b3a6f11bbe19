// This process's membership in a cluster: a composition of clients, each with its own state and header.
//
// A driver opens a session with the head's address, a worker with its node's environment variables. Any thread may call the members of
// Session and of its clients, unless their headers restrict them to threads that own the loop (SessionLoop::own). A waiting thread runs the
// loop itself. Blocking members poll `interrupted`.
//
// The order of the fields is the order in which they depend on each other. A client registers its handlers with the links when it is made,
// before any thread runs the loop. ~Session closes all connections in one turn of the loop. LoopThread is the last field: its thread runs
// handlers, which use every other field, until it is joined.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/clients/actor_client.h"
#include "actors/session/clients/call_client.h"
#include "actors/session/clients/cluster_client.h"
#include "actors/session/clients/group_client.h"
#include "actors/session/clients/hosting.h"
#include "actors/session/clients/object_client.h"
#include "actors/session/clients/process_report.h"
#include "actors/session/folder/credentials.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/link/session_loop.h"
#include "actors/session/logs/job_logs.h"
#include "actors/session/objects/node_memory.h"
#include "actors/session/objects/outlived.h"
#include "runtime/loop/loop_thread.h"
#include "runtime/loop/random.h"

namespace shoal::runtime {
class SocketNetwork;
}

namespace shoal::actors {

struct SessionOptions {
  Credentials credentials;
  std::string head;  // endpoints, tried in turn; required for a driver
  // Endpoint of the node. A worker needs it; a driver gets it from the head.
  std::string node;
  // For a driver on a host that joined the cluster: that host's node.
  std::string own_node;
  std::string name;  // displayed name of a driver
  std::string role = "driver";
  WorkerId worker;  // set by the node that started this process
  JobId job;        // set by the node, or the job that a driver joins
  // A driver's job ends with it. False under torchrun, where no rank's end is the end of the job.
  bool ends_job = true;
  bool print_logs = true;  // print the output of the job's workers, and the head's warnings, on stdout and stderr
  // On a terminal, show a line that several workers print once.
  bool fold_logs = false;
  ProcessReporter::Measured measured = {};
  std::function<bool()> interrupted;                          // polled while waiting; true ends the wait with Cancelled/Interrupted
  runtime::Duration head_timeout = std::chrono::seconds(60);  // how long to wait until a dead head restarts, or another one leads
  runtime::Duration control_timeout = std::chrono::seconds(30);
  runtime::Duration connect_timeout = std::chrono::seconds(5);
  runtime::Duration retry_delay = std::chrono::seconds(1);  // pause before a call that was lost with its process is sent again
};

class Session {
 public:
  // Opens the session. A driver registers a job (or joins `job`); a worker attaches to its node and can take calls. Raises this process's
  // limit on open descriptors.
  static Result<std::unique_ptr<Session>> open(SessionOptions options);
  // Leaves the cluster in order: a driver's job and its actors end.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Identity& identity() const { return identity_; }
  const Credentials& credentials() const { return options_.credentials; }
  template <class IdType>
  IdType new_id() {
    return loop_.own([this] { return random_->id<IdType>(); });
  }
  // Before the end of a driver: the uncaught exception that ends the program. The job has failed then.
  void set_failure(std::string failure) { failure_ = std::move(failure); }
  // The numbers of frames on all connections of this process: to head, node, actors and callers.
  runtime::Traffic traffic();
  // For a forked child: closes its copies of the session's descriptors. No other member may be called there, not even the destructor.
  void abandon_after_fork();

  SessionLoop& loop() { return loop_; }
  NodeClient& node() { return node_; }
  // This session for objects that may outlive it, and of which forked children have copies.
  const std::shared_ptr<Outlived<Session>>& outlived() const { return outlived_; }
  // The node's shared memories that this process opens by name. Their users may outlive the session.
  const std::shared_ptr<NodeMemory>& memory() const { return memory_; }
  HeadClient& head() { return head_; }
  CallClient& calls() { return calls_; }
  ObjectClient& objects() { return objects_; }
  ActorClient& actors() { return actors_; }
  GroupClient& groups() { return groups_; }
  ClusterClient& cluster() { return cluster_; }
  JobLogs& logs() { return logs_; }
  // This process as a host of actors.
  Hosting& hosting() { return hosting_; }
  // Records the calls that this process runs. Only while the loop is owned.
  CallBook& call_book() { return book_; }
  ProcessReporter& reporter() { return reporter_; }

 private:
  explicit Session(SessionOptions options);
  Result<void> connect();
  Result<void> connect_driver();
  Result<void> connect_node(const std::string& endpoint);

  const SessionOptions options_;
  Identity identity_;
  std::string failure_;
  SessionLoop loop_;
  const std::unique_ptr<runtime::Random> random_;
  const std::unique_ptr<runtime::SocketNetwork> network_;
  CallBook book_;
  NodeClient node_;
  const std::shared_ptr<NodeMemory> memory_;
  HeadClient head_;
  CallClient calls_;
  ObjectClient objects_;
  ActorClient actors_;
  GroupClient groups_;
  Hosting hosting_;
  JobLogs logs_;
  ClusterClient cluster_;
  ProcessReporter reporter_;
  const std::shared_ptr<Outlived<Session>> outlived_ = std::make_shared<Outlived<Session>>(*this);
  runtime::LoopThread loop_thread_;
};

}  // namespace shoal::actors
