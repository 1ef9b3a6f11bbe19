// This process's membership in a cluster: connections to head and node, the actors it calls and those it hosts.
//
// A driver opens a session with the head's address, a worker with its node's environment variables. Any thread may call any member; a
// waiting thread runs the loop itself (LoopThread). Blocking members poll `interrupted`.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "actors/session/actor_calls.h"
#include "actors/session/actor_host.h"
#include "actors/session/credentials.h"
#include "actors/session/group_watch.h"
#include "actors/session/handles.h"
#include "actors/session/host_requests.h"
#include "actors/session/logs/line_printer.h"
#include "actors/session/object_store.h"
#include "actors/session/logs/remote_logs.h"
#include "actors/session/task_pool.h"
#include "actors/wire/head_messages.h"
#include "actors/wire/inspection.h"
#include "actors/wire/method.h"
#include "actors/wire/node_messages.h"
#include "actors/wire/packages.h"
#include "runtime/loop/loop_thread.h"

namespace shoal::actors {

struct SessionOptions {
  Credentials credentials;
  std::string head;      // endpoints, tried in turn; a driver needs it
  std::string node;      // endpoint; required for a worker, while the head returns a driver's
  std::string own_node;  // a driver's node, on a host that joined the cluster
  std::string name;      // a driver's displayed name
  std::string role = "driver";
  WorkerId worker;         // for a process that a node started
  JobId job;               // likewise
  bool ends_job = true;    // a driver's job ends with it; false under torchrun, whose ranks are equals
  bool print_logs = true;  // print the output of the job's workers, and the head's warnings, on stdout and stderr
  bool fold_logs = false;  // on a terminal, show equal lines of several workers once
  // Metrics of this process's users, for inspection. `last`: the process leaves, and counts restart at zero. Any thread, never with
  // Python's GIL held.
  std::function<std::vector<MetricFamily>(bool last)> measured;
  std::function<bool()> interrupted;                          // polled while waiting; true ends the wait with Cancelled/Interrupted
  runtime::Duration head_timeout = std::chrono::seconds(60);  // for a dead head to restart, or another to lead
  runtime::Duration control_timeout = std::chrono::seconds(30);
  runtime::Duration connect_timeout = std::chrono::seconds(5);
  runtime::Duration retry_delay = std::chrono::seconds(1);  // before a call lost with its process is sent again
};

class Session {
 public:
  // A driver registers a job (or joins `job`); a worker attaches to its node and can take calls. Raises this process's limit of
  // descriptors.
  static Result<std::unique_ptr<Session>> open(SessionOptions options);
  // Leaves the cluster in order: a driver's job and its actors end.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  JobId job() const { return job_; }
  WorkerId worker() const { return worker_; }
  NodeId node() const { return node_id_; }
  const std::string& folder() const { return folder_; }   // the session's folder
  const std::string& host() const { return host_name_; }  // this host's address for other hosts
  // Endpoints of the head, tried in turn; reports of the node update them.
  std::string head_endpoint();
  const std::string& node_endpoint() const { return node_endpoint_; }
  std::string endpoint();  // where this process takes calls

  // ---- actors ----
  template <class IdType>
  IdType new_id() {
    return loop_thread_.own([this] { return random_->id<IdType>(); });
  }
  // Begins with the time, so that groups that come and go together are adjacent in the head's store. The rest is random.
  GroupId new_group_id();
  // Returns when the head accepts the gang; calls may be made at once. After a refusal such calls fail with its error. For a gang that
  // can never be placed (Unschedulable) this succeeds, and all calls fail.
  // The caller fills in ids, job and gang id (new_id). An existing actor (get_if_exists) is returned, and the ids in `spec` are unused.
  Result<std::optional<FoundActor>> create_gang(const GangSpec& spec);
  // The living actor of this name, in any job; calls on it may be made from now on. NotFound/NoSuchName.
  Result<FoundActor> find_actor(const FindActor& request);
  // Allows calls on another process's actor, since handles are plain values. NotFound when the head does not have it.
  Result<void> know(ActorId actor, const std::string& class_name);
  // `task`: receives the call's new task number.
  ValueFuture call(Call call, std::vector<ValueFuture> deps, std::uint64_t* task = nullptr);
  // The `count` results of a call as separate futures.
  std::vector<ValueFuture> split(const ValueFuture& whole, std::size_t count);
  // See ActorCalls. Only while the loop is owned.
  std::uint64_t new_task() { return calls_->new_task(); }
  Streams& streams() { return calls_->streams(); }
  // Calls made after this fail. `restart`: a restartable actor only loses its process.
  Result<void> kill(ActorId actor, bool restart = false);
  // Kills an actor that was never placed or lacks its arguments, unless a user's call waits for it here. Returns true if it did.
  Result<bool> withdraw(ActorId actor);
  // Kills an idle or used-up worker of functions. Actors that it made (a function may return a handle) become this process's.
  Result<void> retire(ActorId worker);
  // The handle and creation spec of the restarted actor that this worker has to make. NotFound.
  Result<FoundActor> creation_spec();
  // See ActorCalls.
  void in_any_order(ActorId actor, bool any);
  // Keeps `what` until every call on this actor that was made by now has its answer.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);
  // An unwanted value's call, and a callback just before its cancellation. Both run on the loop.
  struct ToCancel {
    std::function<ValueFuture()> answer;
    std::function<void()> done;
  };
  // Cancels a call: it fails as Cancelled/TaskCancelled, unless its answer comes first. No effect if it is answered, or not made by this
  // process. InvalidArgument for `force` on an actor's method, which then goes on.
  Result<void> cancel(const ToCancel& what, CancelHow how);
  // The same for an object that any process published. Returns once that process has cancelled it. No effect if it is gone.
  Result<void> cancel_elsewhere(const ObjectKey& object, WorkerId owner, CancelHow how);
  // According to the reports received so far.
  bool dead(ActorId actor);
  Result<ListReply> list(ListRequest::What what, JobId job = {});
  Result<ClusterStatus> status();
  Result<ClusterStatus> resources();  // only total, available and wanted_back
  // Packages that the head keeps. put_package stores a part (without data: only asks) and returns true once all parts are there.
  // InvalidArgument/FromTheFirst if earlier parts are missing. get_package returns the part at `offset`.
  Result<bool> put_package(const PackagePart& part);
  Result<PackagePart> get_package(const std::string& name, std::uint64_t offset);
  // ---- remote functions ----
  // A pool that makes calls through this session and closes with it. `wanted` is called on the loop. Use it only while the loop is owned.
  // `lends`: its workers hold CPUs.
  std::shared_ptr<TaskPool> make_task_pool(std::function<void()> wanted, bool spread, bool lends);

  // ---- placement groups ----
  // Returns when the head accepts the group; group_ready waits for its placement.
  Result<void> create_group(const GroupSpec& spec);
  // `value` once it has all its bundles. Cancelled/GroupRemoved, NotFound.
  ValueFuture group_ready(GroupId group, Value value);
  // Does not wait for the head. Later requests to the head find the group removed.
  Result<void> remove_group(GroupId group);
  Result<GroupRow> group(GroupId group);
  Result<GroupRow> find_group(const FindActor& request);

  // Asks the head to end the whole cluster.
  Result<void> shutdown_cluster();

  // Frames on all connections of this process: head, node, actors and callers.
  runtime::Traffic traffic();

  // Usable after the session is closed.
  std::shared_ptr<runtime::Clock> clock() const { return clock_; }

  // ---- waiting ----
  // Waits until done() holds (called while the loop is owned). DeadlineExceeded or Cancelled/Interrupted otherwise.
  Result<void> wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline = runtime::LoopThread::kForever);
  // `limit` from now, for wait(); Duration::max(): no deadline.
  std::chrono::steady_clock::time_point deadline_in(runtime::Duration limit) const;
  // For a thread about to sleep on a descriptor that a handler sets (LoopThread::hand_over).
  void hand_over() { loop_thread_.hand_over(); }
  // Runs fn while this thread owns the loop.
  template <class F>
  auto own(F&& fn) {
    return loop_thread_.own(std::forward<F>(fn));
  }

  // Returns when all lines that the job's workers have printed so far are printed here (print_logs). A driver calls this before it
  // leaves.
  Result<void> sync_logs();

  // ---- objects ----
  // A ready future of a value.
  ValueFuture put(Value value);
  // The memory for large values of this process. Any thread.
  ValueMemory& memory() { return objects_; }
  // Publishes a value, ready or not, at the node under this id for other processes. A value that cannot be shared becomes an error. The
  // node keeps it while any process holds it; the result is this process's hold. Without `to_cancel`, cancelling the object cancels the
  // future itself.
  std::shared_ptr<const void> publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  // The same, but the node keeps it until it is dropped, or its job ends.
  void give(ObjectId id, const ValueFuture& future);
  // References that this process holds and passes on.
  References& references() { return references_; }
  // Counts the handles that keep actors alive. Only while the loop is owned, except for a handle's share.
  Handles& handles() { return handles_; }
  // An object that a process of its job published or will publish at `home` (none: this node). Errors are Unavailable: OwnerDied (process
  // or node ended first), ObjectFreed (no holder left), ObjectLost (its node is unreachable).
  ValueFuture fetch(const ObjectKey& object, WorkerId owner);
  // The node keeps it no longer, even if it is published later.
  void drop(ObjectId id);

  // ---- hosting ----
  // Only while the loop is owned.
  ActorHost& actor_host() { return *actor_host_; }
  // Records the calls that this process runs. Only while the loop is owned.
  CallBook& call_book() { return *book_; }
  // True if calls made by this process are unanswered: their results would be lost with it. Only while the loop is owned.
  bool any_open_calls() const;
  // The same for calls on one actor.
  bool any_open_calls(ActorId actor) const;
  // Counts `whole`, the result of several attempts, as open until it is ready, even between attempts. Loop only.
  void note_open(const ValueFuture& whole);
  // For a worker whose actor ends with it, even a restartable one.
  Result<void> leave();
  // For a worker that blocks: others may use its CPUs meanwhile.
  void set_blocked(bool blocked);
  // Reports to the node that this process takes calls.
  Result<void> ready();
  // Places an actor in this process as a member of a gang over `world_size` processes. The future is ready when all are there.
  Result<runtime::Future<HostedActor>> host_actor(HostActor actor, std::shared_ptr<Hosted> hosted, runtime::Duration timeout);
  void set_attributes(const SetAttributes& attributes);

  // ---- the node's memory ----
  Result<Fd> open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member = -1);
  void drop_arena(const std::string& key);

  // For a process about to end: sends its metrics to the node and waits for the answer, at most `within`.
  void send_last_metrics(runtime::Duration within);

  // In a forked child: closes its copies of the descriptors. No other member may be called there, not even the destructor.
  void abandon_after_fork();

 private:
  class Link;  // to head or node
  explicit Session(SessionOptions options);
  Result<void> connect();
  Result<void> connect_driver();
  Result<void> connect_node(const std::string& endpoint);
  // Waits for the connection, and dials it unless an attempt is under way.
  Result<void> reach(Link& link, const std::string& endpoint);
  Result<void> reach_head_once();
  // The head's node restarts a dead head. An attempt that fails for lack of a head is repeated until head_timeout, while this process has
  // a node.
  Result<void> reach_head();
  Result<void> with_head(const std::function<Result<void>()>& attempt);
  // `sending` runs just before the request is sent, if there is a connection.
  Result<runtime::Message> ask(Link& link, Method method, Bytes body, runtime::Duration timeout, const std::function<void()>& sending = {});
  // Repeats a request whose head died before it answered. This is safe, since each request names what it makes.
  Result<runtime::Message> ask_head(Method method, const Bytes& body, const std::function<void()>& sending = {});
  Result<FoundActor> found(const Result<runtime::Message>& reply);
  void watch(GroupId group);
  void watch(ActorId actor, runtime::Duration timeout, std::function<void(Result<void>)> done);
  void on_head_opened();
  void on_closed();
  void put_when_ready(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  // Loop only.
  ValueFuture fetch_now(const ObjectKey& object, WorkerId owner);
  ValueFuture release(ActorId actor);
  void withdraw_soon(ActorId actor);
  void lend(ActorId worker);
  void resume(ActorId worker, const std::function<void(bool)>& done);
  Result<void> cancel_now(const ToCancel& what, CancelHow how);
  Result<void> cancel_published(const ObjectKey& object, CancelHow how);
  void count(const std::vector<References::Change>& changes);
  Result<void> share_memory(const Fd& membership_page, std::int32_t member, const std::string& spill_folder);
  void on_head_notice(runtime::Request notice);
  void on_node_notice(runtime::Request notice);
  void on_logs(const std::string& host, const runtime::Request& notice);
  void no_more_logs(NodeId node, const std::string& text);
  Result<runtime::Message> asked(const runtime::Request& request);
  ProcessReport reported(const Inspect& inspect);
  std::vector<MetricFamily> metrics(bool last) const;

  SessionOptions options_;
  runtime::Loop loop_;
  std::shared_ptr<runtime::Clock> clock_;
  std::unique_ptr<runtime::Random> random_;
  std::unique_ptr<runtime::Network> network_;
  std::function<void(std::function<void()>)> stop_network_;
  std::function<runtime::Traffic()> traffic_;
  References references_;
  Handles handles_;
  std::unique_ptr<CallBook> book_;
  std::uint64_t next_pool_task_ = std::uint64_t{1} << kPoolTaskBits;
  std::unique_ptr<ActorCalls> calls_;
  GroupWatch groups_;
  // Requests and reports that a restarted head needs again.
  std::set<ActorId> creating_;
  std::set<GroupId> creating_groups_;
  std::deque<GroupId> removed_groups_;
  bool blocked_ = false;
  std::vector<std::shared_ptr<TaskPool>> task_pools_;
  std::shared_ptr<std::size_t> num_open_ = std::make_shared<std::size_t>(0);  // note_open
  std::map<ObjectId, ToCancel> promised_;                                     // published before they were ready
  std::unique_ptr<ActorHost> actor_host_;
  std::unique_ptr<HostRequests> host_requests_;
  std::unique_ptr<Link> head_, node_;
  std::unique_ptr<LinePrinter> printer_;
  std::unique_ptr<RemoteLogs> remote_logs_;  // for a driver that prints logs
  JobId job_;
  WorkerId worker_;
  NodeId node_id_;
  std::string folder_, host_name_, head_endpoint_, node_endpoint_;
  bool is_driver_ = false;
  bool ends_cluster_ = false;                              // the cluster ends for this session: what ends with it is no news for open calls
  std::optional<std::vector<MetricFamily>> last_metrics_;  // set when leaving; recording then starts anew
  ObjectStore objects_;
  runtime::LoopThread loop_thread_;  // last, since it runs the loop as soon as it exists
};

}  // namespace shoal::actors
