// This process's place in a cluster: its connections to head and node, the actors it calls and those it hosts.
//
// A driver opens one with the head's address, a worker with what its node put into its environment. Threads: any thread
// may call any member; a waiting thread serves the loop itself (LoopThread). Blocking members look at `interrupted` now
// and then.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/cluster/metrics.h"
#include "actors/session/actor_calls.h"
#include "actors/session/actor_host.h"
#include "actors/session/credentials.h"
#include "actors/session/group_watch.h"
#include "actors/session/handles.h"
#include "actors/session/host_requests.h"
#include "actors/session/line_printer.h"
#include "actors/session/object_store.h"
#include "actors/session/remote_logs.h"
#include "actors/session/task_pool.h"
#include "actors/wire/inspection.h"
#include "actors/wire/messages.h"
#include "actors/wire/packages.h"
#include "runtime/loop/loop_thread.h"
#include "runtime/net/hello.h"

namespace shoal::actors {

struct SessionOptions {
  Credentials credentials;
  std::string head;      // endpoints, tried in turn; a driver needs it
  std::string node;      // endpoint; a worker needs it, a driver is told by the head
  std::string own_node;  // of a driver on a host that joined the head's from elsewhere
  std::string name;      // of the driver, for people
  std::string role = "driver";
  WorkerId worker;         // of a process that a node started
  JobId job;               // likewise
  bool ends_job = true;    // a driver's job ends with it; not so under torchrun, where ranks are equals
  bool print_logs = true;  // what the job's workers print appears on this process's stdout and stderr, and what the head warns of
  bool fold_logs = false;  // lines that several of them print are shown once, where a terminal shows them
  // What users of this process measured, for whoever looks at the cluster. `last`: it leaves, and counts anew from here. Any thread, never
  // under the GIL of Python.
  std::function<std::vector<MetricFamily>(bool last)> measured;
  std::function<bool()> interrupted;                          // asked while waiting; true ends the wait with Cancelled/Interrupted
  runtime::Duration head_timeout = std::chrono::seconds(60);  // for a head that died to be back, or another to lead
  runtime::Duration control_timeout = std::chrono::seconds(30);
  runtime::Duration connect_timeout = std::chrono::seconds(5);
  runtime::Duration retry_delay = std::chrono::seconds(1);  // before a call is made again whose process died
};

class Session {
 public:
  // A driver registers a job (or joins that of its process); a worker attaches to its node and can take calls. Raises this process's limit
  // of descriptors.
  static Result<std::unique_ptr<Session>> open(SessionOptions options);
  // Leaves in order: a driver's job ends and its actors with it.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  JobId job() const { return job_; }
  WorkerId worker() const { return worker_; }
  NodeId node() const { return node_id_; }
  const std::string& folder() const { return folder_; }   // of the cluster's session
  const std::string& host() const { return host_name_; }  // where others reach this host
  // As its node has it: endpoints, tried in turn.
  std::string head_endpoint();
  const std::string& node_endpoint() const { return node_endpoint_; }
  std::string endpoint();  // where this process takes calls

  // ---- actors ----
  template <class IdType>
  IdType new_id() {
    return loop_thread_.own([this] { return random_->id<IdType>(); });
  }
  // Begins with the time: rows of groups that come and go together lie together in the head's store. The rest is random.
  GroupId new_group_id();
  // Accepted by the head; calls may be made at once. If not, calls made meanwhile fail likewise; of one that could never be placed
  // (Unschedulable) also those that come, and this is no failure. Ids, job and gang id are filled in by the
  // caller (new_id), its creator here.
  // With get_if_exists, who exists already, and is known here then; the ids in `spec` name nobody.
  Result<std::optional<FoundActor>> create_gang(const GangSpec& spec);
  // The living actor of this name, of whatever job; known here from now on. NotFound/NoSuchName.
  Result<FoundActor> find_actor(const FindActor& request);
  // Makes an actor of another process known here: handles are values. NotFound when the head does not know it.
  Result<void> know(ActorId actor, const std::string& class_name);
  // `task`: gets the number of one that has none yet.
  ValueFuture call(Call call, std::vector<ValueFuture> deps, std::uint64_t* task = nullptr);
  // The `count` results of a call, each by itself.
  std::vector<ValueFuture> split(const ValueFuture& whole, std::size_t count);
  // See ActorCalls. Only while the loop is owned.
  std::uint64_t new_task() { return calls_->new_task(); }
  Streams& streams() { return calls_->streams(); }
  // Calls made after this fail, whatever the actor's process still does. `restart`: it only loses its process, if it is one that is started
  // again.
  Result<void> kill(ActorId actor, bool restart = false);
  // Kills an actor that was never placed, or never had its arguments, if no call of a user's waits for it here. Whether it did.
  Result<bool> withdraw(ActorId actor);
  // Of a worker of functions that is idle or used up: kills it, but what it made (a function returned a handle) lives on, as if this
  // process had made it.
  Result<void> retire(ActorId worker);
  // Of the actor that this process, a worker, is to make by itself: one that is started again. NotFound.
  Result<FoundActor> birth();
  // See ActorCalls.
  void in_any_order(ActorId actor, bool any);
  // Keeps `what` until every call on this actor that was made by now has its answer.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);
  // What is to be cancelled when nobody wants a value any more, and who hears that it was. Both are called on the loop.
  struct ToCancel {
    std::function<ValueFuture()> answer;
    std::function<void()> done;
  };
  // Nobody wants this answer any more: one that is not there yet will be Cancelled/TaskCancelled, unless it comes first. Nothing for one
  // that is there, or that no call of this process makes. InvalidArgument for force with a method of an actor: it goes on as if nobody had
  // asked.
  Result<void> cancel(const ToCancel& what, CancelHow how);
  // The same of what a process, this one or another, has published under this name. Returns once that one has cancelled it; nothing for one
  // that is gone.
  Result<void> cancel_elsewhere(const ObjectKey& object, WorkerId owner, CancelHow how);
  // As far as this process has heard.
  bool dead(ActorId actor);
  Result<ListReply> list(ListRequest::What what, JobId job = {});
  Result<ClusterStatus> status();
  Result<ClusterStatus> resources();  // of it what there is and what is free, and whether this job has what others wait for
  // Folders that travel, kept by the head: leaves a part of one (without data: asks only); whether it has all of it. InvalidArgument/
  // FromTheFirst when it has not what comes before. And the part that begins there.
  Result<bool> put_package(const PackagePart& part);
  Result<PackagePart> get_package(const std::string& name, std::uint64_t offset);
  // ---- remote functions ----
  // Its calls are this session's; it ends with it, if not before. `wanted` is called on the loop. Use it only while the loop is owned.
  // `lends`: its workers hold CPUs.
  std::shared_ptr<TaskPool> make_task_pool(std::function<void()> wanted, bool spread, bool lends);

  // ---- placement groups ----
  // Accepted by the head; whether there is room for it, now or later, group_ready tells.
  Result<void> create_group(const GroupSpec& spec);
  // `value` once it has all its bundles. Cancelled/GroupRemoved, NotFound.
  ValueFuture group_ready(GroupId group, Value value);
  // Not waited for: what is asked of the head after this finds it removed.
  Result<void> remove_group(GroupId group);
  Result<GroupRow> group(GroupId group);
  Result<GroupRow> find_group(const FindActor& request);

  // Asks the head to end the whole cluster.
  Result<void> shutdown_cluster();

  // Frames of all connections of this process, to whomever: head, node, actors and callers.
  runtime::Traffic traffic();

  // Tells the time also after the session is closed.
  std::shared_ptr<runtime::Clock> clock() const { return clock_; }

  // ---- waiting ----
  // Until done() holds (asked while the loop is owned). DeadlineExceeded or Cancelled/Interrupted otherwise.
  Result<void> wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline = runtime::LoopThread::kForever);
  // `limit` from now, for wait(); Duration::max(): never.
  std::chrono::steady_clock::time_point deadline_in(runtime::Duration limit) const;
  // For a thread that goes to sleep on a descriptor which a handler will set (LoopThread::hand_over).
  void hand_over() { loop_thread_.hand_over(); }
  // Runs fn while this thread owns the loop.
  template <class F>
  auto own(F&& fn) {
    return loop_thread_.own(std::forward<F>(fn));
  }

  // What workers of the job have printed by now has been printed here (print_logs). A driver does this before it leaves.
  Result<void> sync_logs();

  // ---- objects ----
  // A value as a future: a reference to something that is there already.
  ValueFuture put(Value value);
  // The memory of large values that this process makes. Any thread.
  ValueMemory& memory() { return objects_; }
  // Gives a value to the node under this id, so that other processes can get it. It may not be ready yet. If it cannot be shared, they get
  // that error. The node keeps it as long as somebody holds it: this process as long as it has what is returned. Without `to_cancel` the
  // future itself is what is cancelled when nobody wants it any more.
  std::shared_ptr<const void> publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel = {});
  // The same, but the node keeps it until it is dropped, or the job ends.
  void give(ObjectId id, const ValueFuture& future);
  // What this process refers to, and gives away.
  References& references() { return references_; }
  // Which actors end with whose handles. Only while the loop is owned, but for what it gives out.
  Handles& handles() { return handles_; }
  // One that a process of that job published, or will, at its node (`home`; none: this one). Unavailable/OwnerDied when that process or
  // node ends before, Unavailable/ObjectFreed when nobody held it any more, Unavailable/ObjectLost when its node cannot be reached.
  ValueFuture fetch(const ObjectKey& object, WorkerId owner);
  // Kept for nobody from now on, also if it comes later.
  void drop(ObjectId id);

  // ---- hosting ----
  // Only while the loop is owned.
  ActorHost& actor_host() { return *actor_host_; }
  // For queues of calls that this process runs. Likewise.
  CallBook& call_book() { return *book_; }
  // Whether this process has made calls that have no answer yet: should it end, they are lost, and so is what they come to. Only while the
  // loop is owned.
  bool any_open_calls() const;
  // Whether calls that this process has made on this actor have no answer yet. Only while the loop is owned.
  bool any_open_calls(ActorId actor) const;
  // What is to come of several attempts, between which there may be none: open until it is ready. Loop only.
  void note_open(const ValueFuture& whole);
  // Of a worker whose actor is to end with it, even if it is one that is started again.
  Result<void> leave();
  // Of a worker that waits for others: they may have its CPUs until it goes on.
  void set_blocked(bool blocked);
  // Tells the node that this process takes calls now.
  Result<void> ready();
  // Places an actor in this process, as one of a gang whose members live in `world_size` processes. The future is ready when all are there.
  Result<runtime::Future<HostedActor>> host_actor(HostActor actor, std::shared_ptr<Hosted> hosted, runtime::Duration timeout);
  void set_attributes(const SetAttributes& attributes);

  // ---- the node's memory ----
  Result<Fd> open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member = -1);
  void drop_arena(const std::string& key);

  // Of a process that is about to end, or to be killed: its node has what it measured when this returns, unless that takes too long.
  void tell_last_metrics(runtime::Duration within);

  // In a child that was forked: closes its copies of our descriptors. Nothing else may be called there any more, the
  // destructor least of all.
  void abandon_after_fork();

 private:
  class Link;  // to head or node
  explicit Session(SessionOptions options);
  Result<void> connect();
  Result<void> connect_driver();
  Result<void> connect_node(const std::string& endpoint);
  // Waits for the connection, which is dialled if nobody does so already.
  Result<void> reach(Link& link, const std::string& endpoint);
  Result<void> reach_head_once();
  // The node of its host starts a head again that died: what fails for the lack of one waits for that, as long as there is a node.
  Result<void> reach_head();
  Result<void> with_head(const std::function<Result<void>()>& attempt);
  // `sending` runs with the request, if it can be sent at all.
  Result<runtime::Message> ask(Link& link, Method method, Bytes body, runtime::Duration timeout, const std::function<void()>& sending = {});
  // Asked again when the head died before it answered: each request names what it makes.
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
  Result<void> share_memory(const Fd& board, std::int32_t member, const std::string& spill_folder);
  void on_head_notice(runtime::Request notice);
  void on_node_notice(runtime::Request notice);
  void on_logs(const std::string& host, const runtime::Request& notice);
  void no_more_logs(NodeId node, const std::string& text);
  Result<runtime::Message> asked(const runtime::Request& request);
  ToldProcess told(const Inspect& inspect);
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
  // What a head that is back is asked for, or told, anew.
  std::set<ActorId> creating_;
  std::set<GroupId> creating_groups_;
  std::deque<GroupId> removed_groups_;
  bool blocked_ = false;
  std::vector<std::shared_ptr<TaskPool>> task_pools_;
  std::shared_ptr<std::size_t> num_open_ = std::make_shared<std::size_t>(0);  // note_open
  std::map<ObjectId, ToCancel> promised_;                                     // what was published before it was there
  std::unique_ptr<ActorHost> actor_host_;
  std::unique_ptr<HostRequests> host_requests_;
  std::unique_ptr<Link> head_, node_;
  std::unique_ptr<LinePrinter> printer_;
  std::unique_ptr<RemoteLogs> remote_logs_;  // of a driver that shows them
  JobId job_;
  WorkerId worker_;
  NodeId node_id_;
  std::string folder_, host_name_, head_endpoint_, node_endpoint_;
  bool is_driver_ = false;
  std::optional<std::vector<MetricFamily>> last_metrics_;  // of one that leaves: the recording begins anew
  ObjectStore objects_;
  runtime::LoopThread loop_thread_;  // last: it serves the loop as soon as it is there
};

}  // namespace shoal::actors
