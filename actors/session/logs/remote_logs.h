// Output and ends of a driver's workers on other nodes. The head reports the nodes where the job has workers, and each is asked for them
// like the driver's own.
//
// A broken connection is not made again, since the node would repeat all lines. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/cluster/rows.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class RemoteLogs final : public runtime::PeerHandler {
 public:
  // kWorkerExited and kLogLines notices of workers on `host`.
  using Notice = std::function<void(const std::string& host, runtime::Request notice)>;
  // Called once when nothing more comes from a node, with a text for the user.
  using Lost = std::function<void(NodeId node, const std::string& text)>;
  RemoteLogs(runtime::Clock& clock, runtime::Network& network, JobId job, Notice notice, Lost lost)
      : clock_(clock), network_(network), job_(job), notice_(std::move(notice)), lost_(std::move(lost)) {}
  RemoteLogs(const RemoteLogs&) = delete;
  RemoteLogs& operator=(const RemoteLogs&) = delete;
  ~RemoteLogs();

  // No effect for a node that is followed already.
  void follow(const NodeRow& node);
  // All lines printed so far arrive before syncing() is false again. A node that does not answer keeps it true.
  void sync();
  bool syncing() const;

 private:
  struct Link {
    std::string host;
    std::unique_ptr<runtime::Peer> peer;  // null while connecting, and once broken
    int asked = 1;                        // unanswered requests, with the connection attempt
  };
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  void connected(NodeId node, Result<std::unique_ptr<runtime::Connection>> connection);
  void ask(Link& link, std::uint16_t method, Bytes body);
  void lost(NodeId node, const Link& link, const Error& why) const;

  static constexpr runtime::Duration kConnectTimeout = std::chrono::seconds(5), kAnswerTimeout = std::chrono::seconds(30);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const JobId job_;
  const Notice notice_;
  const Lost lost_;
  std::map<NodeId, Link> links_;
  bool sync_ = false;  // also for connections that are not made yet
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
