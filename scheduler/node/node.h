// The node of a host: it owns what the host's processes share, starts and ends workers, and reports their deaths.
//
// Its parts: workers.h has the processes, head_link.h the connection to the head, node_clients.h all other connections, objects/ the
// objects. The handlers in node_methods.cc connect these parts. Loop thread only. All dependencies are arguments, so the simulation runs
// this very class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/method_table.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/node/head_link.h"
#include "scheduler/node/logs/worker_logs.h"
#include "scheduler/node/metrics/usage_places.h"
#include "scheduler/node/node_clients.h"
#include "scheduler/node/node_reports.h"
#include "scheduler/node/objects/objects.h"
#include "scheduler/node/processes/launcher.h"
#include "scheduler/node/processes/workers.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class Node final : public runtime::PeerHandler {
 public:
  struct Events {
    std::function<void()> on_registered;
    std::function<void()> on_ending;  // called when the node begins to end
    // Called when the node ends because it has no head any more (head_absence.h), before on_ending.
    std::function<void(const std::string& why)> on_orphaned;
    std::function<void(const std::string& why)> on_end;  // called when every worker has ended; `why` is for the log
  };
  struct Options {
    actors::Resources resources;
    std::map<std::string, std::string> labels;
    std::optional<std::uint16_t> order;  // the node's id begins with it, and ranks are placed in the order of ids
    std::string host = "127.0.0.1";      // address of this host for other hosts
    pid_t pid = 0;
    runtime::Endpoint listen;
    std::string session;  // the session folder
    HeadLink::Options head;
    Workers::Options workers;
    Launcher::Env variables;  // in the environment of each worker, unless its launch sets them
    LogBook::Options logs;
    // Ended workers whose output is kept for clients that begin to follow their job.
    std::size_t max_ended = 400;
    storage::MemoryTable::Options memory;
    Objects::Options objects;
    PeerNodes::Options peer_nodes;
    // Limit of the objects of all processes together; 0: none.
    std::uint64_t object_store_bytes = 0;
    // The node ends once this process and all processes that attached by themselves (a driver, ranks under torchrun) have ended.
    std::optional<pid_t> owner;
    NodeReports::Measure measure;
    Events events;
  };

  Node(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Launcher& launcher, runtime::Log log, Options options);
  ~Node();

  // Listens, then connects to the head, and tries again until a head registers the node.
  Result<void> start();
  // Ends all workers (SIGTERM, then SIGKILL) and then calls on_end. `of_workers`: the cause of the workers' ends, instead of the signal.
  void end(const std::string& why, std::optional<Error> of_workers = {});

  NodeId id() const { return id_; }
  const runtime::Endpoint& endpoint() const { return listener_->endpoint(); }

 private:
  struct Sender {
    runtime::Peer& peer;
    NodeClient* client = nullptr;  // null if the sender is the head
  };
  // The handlers, by sender. Clients are drivers, workers and commands.
  struct Methods {
    using Table = actors::MethodTable<Sender>;
    Table of_head, of_nodes, of_clients;
  };
  struct Ending {
    std::shared_ptr<void> owner_watch;
    bool owner_gone = false;
    std::optional<std::string> why;  // set once the node begins to end
    runtime::Timer over;
  };

  // Members of runtime::PeerHandler.
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_drained(runtime::Peer& peer) override;

  // These make the handlers of the events of the node's parts.
  HeadLink::Events head_events();
  Workers::Events worker_events();
  Objects::Events object_events();

  // These set the handlers of methods, by sender.
  void answer_head();
  void answer_nodes();
  void answer_clients();
  void answer_object_clients();

  Launcher::Env environment(const actors::StartWorker& spec) const;
  Result<actors::WithExtras<actors::Attached>> attach(const Sender& sender, const actors::Attach& attach);
  // Cancels the call behind an object: here, if this node is the object's home, else through the home.
  void cancel_result(const actors::CancelResult& cancel, runtime::Responder responder);
  void cancel_own(const actors::CancelResult& cancel, runtime::Responder responder);
  void worker_ended(const Worker& worker, const actors::WorkerUpdate& exit);
  void become(NodeId id);
  void check_owner();
  NodeId new_id();
  void check_ended();

  runtime::Clock& clock_;
  runtime::Random& random_;
  runtime::Network& network_;
  Launcher& launcher_;
  const runtime::Log log_;
  const Options options_;
  NodeId id_;  // from new_id(); a node that was declared dead gets another one
  storage::MemoryTable memory_;
  UsagePlaces usage_;
  Objects objects_;
  WorkerLogs logs_;
  Workers workers_;
  NodeReports reports_;
  Methods methods_;
  std::unique_ptr<runtime::Listener> listener_;
  HeadLink head_;
  NodeClients clients_;
  Ending ending_;
};

}  // namespace shoal::scheduler
