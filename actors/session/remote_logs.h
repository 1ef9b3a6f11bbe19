// What workers of a driver's job print on nodes other than its own, and which of them end there: the head says on which nodes the job has
// workers, and each of these is asked for it, as the own one is.
//
// A connection that breaks is not made again: the node would tell all once more. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/cluster/cluster.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

class RemoteLogs final : public runtime::PeerHandler {
 public:
  // WorkerExited and LogLines, of workers on `host`.
  using Notice = std::function<void(const std::string& host, runtime::Request notice)>;
  // That nothing more comes from this node, as people are told; once.
  using Lost = std::function<void(NodeId node, const std::string& text)>;
  RemoteLogs(runtime::Clock& clock, runtime::Network& network, JobId job, Notice notice, Lost lost)
      : clock_(clock), network_(network), job_(job), notice_(std::move(notice)), lost_(std::move(lost)) {}
  RemoteLogs(const RemoteLogs&) = delete;
  RemoteLogs& operator=(const RemoteLogs&) = delete;
  ~RemoteLogs();

  // Once for each node, however often it is said.
  void follow(const NodeRow& node);
  // What has been printed by now is told before syncing() is false again. A node that falls silent keeps it true.
  void sync();
  bool syncing() const;

 private:
  struct Link {
    std::string host;
    std::unique_ptr<runtime::Peer> peer;  // null while connecting, and once it broke
    int asked = 1;                        // and not answered yet; that of the connection, too
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
  bool sync_ = false;  // also those that are not connected yet
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
