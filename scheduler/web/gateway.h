// The HTTP interface's client of the head and the nodes. It never blocks.
//
// Loop thread only. Every callback runs once. If the gateway ends first, the callback gets Cancelled.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/method.h"
#include "runtime/net/peer.h"
#include "scheduler/node/logs/log_book.h"

namespace shoal::scheduler::web {

class Gateway final : public runtime::PeerHandler {
 public:
  struct Options {
    runtime::Endpoint head;
    std::string logs;  // folder of the session's logs, for workers of dead nodes
    runtime::Duration timeout = std::chrono::seconds(10);
    runtime::Duration poll_interval = std::chrono::milliseconds(200);  // interval of checks whether a job has a process
    std::size_t max_log_bytes = 16u << 20;                             // limit of a log's text, per stream of a process
    // Calls to nodes at a time; further ones wait. A slow call does not count, so that answers do not wait behind silent nodes. There are
    // up to three times as many slow ones.
    std::size_t max_node_calls = 256;
    runtime::Duration slow_node_call = std::chrono::milliseconds(250);
  };
  // Clock and network outlive the gateway.
  Gateway(runtime::Clock& clock, runtime::Network& network, Options options);
  ~Gateway();

  using Answer = std::function<void(Result<runtime::Message>)>;
  void call_head(actors::Method method, Bytes body, Answer answer);
  using Rows = std::function<void(Result<actors::ListReply>)>;
  // Asks for one page of rows, or for all of them, page after page.
  void list_page(const actors::ListRequest& request, Rows rows);
  void list(actors::ListRequest::What what, JobId job, Rows rows);
  // Returns NotFound if the head has no such node.
  void find_node(NodeId node, std::function<void(Result<actors::NodeRow>)> found);
  // Asks a node on a separate connection, for up to `patience`. A call that waits for others to end gets DeadlineExceeded after twice the
  // patience: many silent nodes together take no longer.
  void call_node(const std::string& endpoint, actors::Method method, Bytes body, runtime::Duration patience, Answer answer);
  // Finds a job by submission id or job id. `found` gets NotFound if there is none.
  void find_job(const std::string& id, std::function<void(Result<actors::JobRow>)> found);

  // The output of the job's processes: its own in the order of ranks, then its actors, whose lines carry a label.
  // Returns the error of a node that does not answer, unless the node is gone.
  void read_logs(JobId job, std::function<void(Result<std::string>)> text);

  // Follows the job's output until its own process ends.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual void lines(std::string_view text) = 0;
    virtual void end() = 0;
    virtual bool gone() const = 0;
  };
  void follow_logs(JobId job, std::shared_ptr<Reader> reader);

 private:
  class NodeCall;
  class Tail;

  void on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) override;
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void connect();
  void call_next_node();
  void list_after(actors::ListRequest request, std::shared_ptr<actors::ListReply> sofar, Rows rows);
  void find_job_after(std::uint64_t last, const std::string& id, std::function<void(Result<actors::JobRow>)> found);
  void read_log(const actors::WorkerRow& worker, std::uint16_t stream, std::function<void(Result<std::string>)> text);
  void read_next(std::shared_ptr<std::vector<std::pair<actors::WorkerRow, std::uint16_t>>> left, std::shared_ptr<std::string> sofar,
                 std::function<void(Result<std::string>)> text);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const Options options_;
  const LogBook kept_;
  std::unique_ptr<runtime::Peer> head_;
  bool connecting_ = false;
  std::deque<std::function<void(const Error*)>> waiting_;  // callbacks that wait for the connection
  std::set<std::shared_ptr<NodeCall>> calls_;
  std::size_t num_slow_calls_ = 0;                             // number of slow calls in calls_
  std::deque<std::function<void(const Error*)>> later_calls_;  // calls to nodes that wait until others end
  bool calling_ = false;                                       // call_next_node() is on the stack
  std::set<std::shared_ptr<Tail>> tails_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler::web
