// The client of the head: a connection that is made again, and requests that survive the head's death.
//
// The node of the head's host starts a dead head again, or another head leads. A request that fails for lack of a head is therefore
// repeated until head_timeout, while this process has a node. Repetition is safe, since each request names what it makes
// (docs/decisions/requests-name-what-they-make.md). A restarted head has no watches, so clients that need some add them again in
// link().on_opened().
#pragma once

#include <functional>
#include <string>

#include "actors/protocol/wire/head_messages.h"
#include "actors/session/link/link.h"
#include "actors/session/link/node_client.h"

namespace shoal::actors {

class HeadClient {
 public:
  struct Options {
    runtime::Duration connect_timeout = {}, control_timeout = {};
    runtime::Duration head_timeout = {};
  };
  // Notices of `node` update the head's endpoints (kHeads).
  HeadClient(SessionLoop& loop, runtime::Network& network, NodeClient& node, Options options);

  // ---- any thread ----
  // Endpoints of the head, tried in turn.
  std::string endpoints();
  // Waits for a connection to the head, and tries again until head_timeout. Returns Unavailable/HeadGone if no head answers.
  Result<void> reach();
  // As reach(), with a single attempt.
  Result<void> reach_once();
  Result<runtime::Message> request(Method method, const Bytes& bytes, const std::function<void()>& sending = {});
  template <class Reply>
  Result<Reply> request_for(Method method, const Bytes& bytes) {
    SHOAL_TRY(const runtime::Message reply, request(method, bytes));
    return from_bytes<Reply>(reply.body);
  }
  // As request(), with a single attempt, and only if there is a connection.
  Result<runtime::Message> request_once(Method method, Bytes bytes) {
    return link_.request(method, std::move(bytes), options_.control_timeout);
  }
  // Repeats `attempt` while it fails with HeadGone.
  Result<void> retry(const std::function<Result<void>()>& attempt);
  // For a process that leaves: from now on requests wait for a dead head no longer than `limit`.
  void hurry(runtime::Duration limit);

  // ---- only while the loop is owned ----
  Link& link() { return link_; }
  // Sends a request. If no answer comes within control_timeout, `on_answer` gets an error.
  void call(Method method, Bytes bytes, runtime::Peer::Callback on_answer) {
    link_.call(method, body(std::move(bytes)), options_.control_timeout, std::move(on_answer));
  }
  // Sets the handler of a notice from the head. Notices are dropped once this session ends the cluster (expect_end).
  template <class Notice>
  void on_notice(Method method, std::function<void(const Notice&)> handle) {
    link_.on_notice(method, [this, handle = std::move(handle)](const runtime::Message& message) {
      if (cluster_ends_) return;
      if (const auto notice = from_bytes<Notice>(message.body)) handle(*notice);
    });
  }
  // For a session that ends the cluster: reports of ends that follow are then ignored, so that open calls do not fail by them.
  void expect_end() { cluster_ends_ = true; }
  bool cluster_ends() const { return cluster_ends_; }

 private:
  SessionLoop& loop_;
  const NodeClient& node_;
  Options options_;
  Link link_;
  bool cluster_ends_ = false;
};

// The error of a request without a head.
Error head_gone();

}  // namespace shoal::actors
