// The output and the ends of a driver's workers on other nodes. The head reports the nodes where the job has workers. Each such node is
// asked for output and ends, as the driver's own node is.
//
// A broken connection is not made again, since the node would send all lines once more. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/protocol/cluster/rows.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class RemoteLogs final : public runtime::PeerHandler {
 public:
  // Called for each kWorkerExited and kLogLines notice of a worker on `host`.
  using Notice = std::function<void(const std::string& host, runtime::Request notice)>;
  // Called once for a node from which nothing more comes, with a text for the user.
  using Lost = std::function<void(NodeId node, const std::string& text)>;
  RemoteLogs(runtime::Clock& clock, runtime::Network& network, JobId job, Notice notice, Lost lost)
      : clock_(clock), network_(network), job_(job), notice_(std::move(notice)), lost_(std::move(lost)) {}
  RemoteLogs(const RemoteLogs&) = delete;
  RemoteLogs& operator=(const RemoteLogs&) = delete;
  ~RemoteLogs();

  // Connects to a node and follows its workers. No effect if the node is followed already.
  void follow(const NodeRow& node);
  // Asks all nodes for the lines printed so far. syncing() is false once all have arrived, and stays true if a node does not answer.
  void sync();
  bool syncing() const;

 private:
  struct Link {
    std::string host;
    std::unique_ptr<runtime::Peer> peer;  // null while connecting, and once broken
    // Number of requests without an answer; the attempt to connect counts as one.
    int open_requests = 1;
  };
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  void connected(NodeId node, Result<std::unique_ptr<runtime::Connection>> connection);
  void send(Link& link, std::uint16_t method, Bytes body);
  void lost(NodeId node, const Link& link, const Error& why) const;

  static constexpr runtime::Duration kConnectTimeout = std::chrono::seconds(5), kAnswerTimeout = std::chrono::seconds(30);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const JobId job_;
  const Notice notice_;
  const Lost lost_;
  std::map<NodeId, Link> links_;
  bool sync_ = false;  // sync() was called, so nodes that connect later are asked, too
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
