// The node of a host: owns what its workers share, starts and ends them, and reports their deaths.
//
// Loop thread only. Everything it needs is passed in, so the simulation runs this very class.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "actors/wire/method_table.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/node/devices.h"
#include "scheduler/node/inspection.h"
#include "scheduler/node/launcher.h"
#include "scheduler/node/log_book.h"
#include "scheduler/node/memory_monitor.h"
#include "scheduler/node/metrics_book.h"
#include "scheduler/node/objects/objects.h"
#include "scheduler/node/usage_places.h"
#include "storage/memory_table.h"

namespace shoal::scheduler {

class Node final : public runtime::PeerHandler, private Launcher::Events {
 public:
  struct Options {
    actors::Resources resources;
    std::map<std::string, std::string> labels;
    std::vector<std::string> gpus;   // names for CUDA_VISIBLE_DEVICES; none: workers see what the node sees
    std::string host = "127.0.0.1";  // address of this host for others
    pid_t pid = 0;
    std::vector<runtime::Endpoint> heads;  // endpoints of the head, tried in turn
    runtime::Endpoint listen;
    std::string session;  // folder
    LogBook::Options logs;
    storage::MemoryTable::Options memory;
    MemoryMonitor::Options monitor;
    Objects::Options objects;
    PeerNodes::Options peer_nodes;
    std::uint64_t object_store_bytes = 0;  // limit for the objects of all its processes; 0: none
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration reconnect = std::chrono::milliseconds(500);
    runtime::Duration reconnect_several = std::chrono::milliseconds(100);  // with several heads
    // With several heads: a head that does not answer a heartbeat for so long is given up.
    runtime::Duration head_silence = std::chrono::seconds(3);
    std::size_t max_ended = 400;                             // ended workers whose logs followers, and whose exits heads, still get
    runtime::Duration stop_grace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL when the node ends
    // Ends when `owner` and the last process that attached by itself (a driver, ranks under torchrun) are gone.
    bool ends_with_owner = false;
    pid_t owner = 0;
    // on_end: every worker has ended; `why` is for the log.
    std::function<void()> on_ending;  // the node begins to end
    std::function<void(const std::string& why)> on_end;
    std::function<void()> on_registered;
    // Measures the machine, and calls back later, from the loop. Empty: no such metrics.
    using Measured = std::function<void(std::vector<actors::MetricFamily>)>;
    std::function<void(Measured)> measure;
  };

  Node(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Launcher& launcher, runtime::Log log, Options options);
  ~Node();

  // Listens, then connects to the head, and keeps trying.
  Result<void> start();
  // Ends all workers (SIGTERM, then SIGKILL) and calls on_end.
  void end(const std::string& why);

  NodeId id() const { return id_; }
  const runtime::Endpoint& endpoint() const { return listener_->endpoint(); }

 private:
  struct Worker {
    actors::StartWorker spec;
    bool launched = false;  // by this node
    bool inside = false;    // started by a launched one; the node does not wait for it
    bool doomed = false;    // to be killed as soon as it has a pid
    bool asked = false;     // its end was requested
    std::uint64_t order = 0;
    pid_t pid = 0;
    actors::WorkerState state = actors::WorkerState::kStarting;
    std::string endpoint;
    std::string role;
    runtime::Peer* peer = nullptr;
    std::int32_t member = -1;     // index on the board of object memory; -1: none
    std::shared_ptr<void> watch;  // for a process not launched here
    runtime::Timer kill;          // SIGKILL after the grace period
  };
  // A worker that ended: its logs stay readable.
  struct Ended {
    actors::StartWorker spec;
    Bytes update;  // as sent to clients
    pid_t pid = 0;
  };
  struct Client {
    std::unique_ptr<runtime::Peer> peer;
    WorkerId worker;
    JobId job;
    NodeId node;  // for connections of other nodes
  };

  struct Sender {
    runtime::Peer& peer;
    Client* client = nullptr;  // null for the head
  };
  using Methods = actors::MethodTable<Sender>;

  // runtime::PeerHandler
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_drained(runtime::Peer& peer) override;
  // Launcher::Events
  void output(WorkerId worker, Launcher::Stream stream, std::string_view lines) override;
  void exited(WorkerId worker, runtime::ExitStatus status) override;

  void connect_head();
  void head_is_gone(const std::string& why);
  // Endpoints of the heads: the one in use first, reported ones last.
  std::vector<std::string> ways() const;
  // Sets the list of all heads; clients are notified of a change.
  void heads_are(const std::vector<std::string>& reported);
  void register_with_head();
  void beat();
  void report_exit(const Worker& w, std::int32_t shell_code, const Error& cause);
  void report(const Worker& worker, std::int32_t shell_code = 0, const std::optional<Error>& cause = {});

  // Sets the handlers of methods.
  void answer_head();
  void answer_nodes();
  void answer_clients();
  void answer_object_clients();
  void inspect(const actors::Inspect& asked, runtime::Responder responder);
  // Forwards to the process that made the call, or to its node.
  void cancel_result(const actors::CancelResult& cancel, runtime::Responder responder);
  void cancel_here(const actors::CancelResult& cancel, runtime::Responder responder);
  void measure(Inspection& inspection);
  std::vector<actors::MetricFamily> own_metrics() const;
  void start_worker(const actors::StartWorker& spec, runtime::Responder responder);
  Result<actors::WithExtras<actors::Attached>> attach(const Sender& sender, const actors::Attach& attach);
  // Sends the job's output so far, and from now on.
  void follow(runtime::Peer& peer, JobId job);
  // `function`: the one that printed the lines, for a worker of remote functions.
  void send_lines(runtime::Peer& peer, const actors::StartWorker& spec, std::string_view function, pid_t pid, Launcher::Stream stream,
                  std::string_view lines);
  void stop_worker(const actors::StopWorker& stop);
  void end_job(JobId job);
  void become(NodeId id);
  std::vector<MemoryUser> memory_users() const;
  void want_room(std::uint64_t bytes, const runtime::Peer* but);
  void worker_gone(WorkerId worker, std::int32_t shell_code, const Error& cause);
  void check_owner();
  void check_ended();

  runtime::Clock& clock_;
  runtime::Random& random_;
  runtime::Network& network_;
  Launcher& launcher_;
  const runtime::Log log_;
  const Options options_;
  NodeId id_;
  storage::MemoryTable memory_;
  Objects objects_;
  UsagePlaces usage_;
  MetricsBook metrics_;
  LogBook logs_;
  Devices devices_;
  MemoryMonitor monitor_;

  Methods of_head_, of_nodes_, of_clients_;  // by sender; drivers, workers and commands are clients
  std::unique_ptr<runtime::Listener> listener_;
  std::unique_ptr<runtime::Peer> head_;
  bool registered_ = false;
  std::vector<runtime::Endpoint> heads_;  // configured ones, then reported ones
  std::size_t at_head_ = 0;               // index of the one in use, or tried next
  std::size_t heads_tried_ = 0;           // since the last registration
  std::vector<std::string> reported_;     // endpoints last sent to clients
  // A list that arrived before the answer to the registration, and is newer than the one in that answer.
  std::optional<std::vector<std::string>> heads_news_;
  runtime::Timer reconnecting_, beating_, killing_;
  std::uint32_t heartbeat_ms_ = 500;
  std::map<std::uint64_t, Client> clients_;  // in order of arrival
  std::uint64_t next_client_ = 1, next_worker_ = 1;
  std::map<WorkerId, Worker> workers_;
  std::map<JobId, std::set<std::uint64_t>> followers_;
  std::deque<Ended> ended_;
  std::deque<Bytes> exits_;  // sent again to a head that reconnects
  std::set<JobId> torch_jobs_;
  std::shared_ptr<void> owner_watch_;
  bool owner_gone_ = false;
  std::optional<std::string> ending_;  // why
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
