#include "actors/session/logs/remote_logs.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/method.h"

namespace shoal::actors {

using runtime::Message;
using runtime::Peer;

RemoteLogs::~RemoteLogs() {
  *alive_ = false;
  links_.clear();
}

void RemoteLogs::follow(const NodeRow& node) {
  const auto [it, is_new] = links_.try_emplace(node.id);
  if (!is_new) return;
  it->second.host = node.host;
  const auto to = runtime::parse_endpoint(node.endpoint);
  if (!to) return connected(node.id, fail(to.error()));
  network_.connect(*to, runtime::Role::kClient, kConnectTimeout, [this, alive = alive_, id = node.id](auto connection) {
    if (*alive) connected(id, std::move(connection));
  });
}

void RemoteLogs::connected(NodeId node, Result<std::unique_ptr<runtime::Connection>> connection) {
  Link& link = links_.at(node);
  --link.open_requests;
  if (!connection) return lost(node, link, connection.error());
  link.peer = std::make_unique<Peer>(*std::move(connection), clock_, *this);
  send(link, number(Method::kFollowLogs), to_bytes(JobRef{job_}));
  if (sync_) send(link, number(Method::kSyncLogs), to_bytes(JobRef{job_}));
}

void RemoteLogs::sync() {
  sync_ = true;
  for (auto& [node, link] : links_) {
    if (link.peer) send(link, number(Method::kSyncLogs), to_bytes(JobRef{job_}));
  }
}

bool RemoteLogs::syncing() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& l) { return l.second.open_requests > 0; });
}

// The callback may capture `link`, since the map never moves its elements.
void RemoteLogs::send(Link& link, std::uint16_t method, Bytes bytes) {
  ++link.open_requests;
  link.peer->call(method, {std::move(bytes), {}, {}}, kAnswerTimeout, [alive = alive_, &link](const Result<Message>&) {
    if (*alive) --link.open_requests;
  });
}

void RemoteLogs::on_request(Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a client accepts no requests"));
}

void RemoteLogs::on_notice(Peer& peer, runtime::Request notice) {
  const auto method = static_cast<Method>(notice.method);
  if (method != Method::kLogLines && method != Method::kWorkerExited) return;
  for (const auto& [node, link] : links_) {
    if (link.peer.get() == &peer) return notice_(link.host, std::move(notice));
  }
}

void RemoteLogs::on_closed(Peer& peer, const Error& why) {
  for (auto& [node, link] : links_) {
    if (link.peer.get() != &peer) continue;
    const auto owned = std::move(link.peer);  // the connection, which has called this function, lives until it returns
    return lost(node, link, why);
  }
}

// Reports that no more lines come from this node. The text does not claim that the node has ended, since only the head can judge that.
void RemoteLogs::lost(NodeId node, const Link& link, const Error& why) const {
  if (sync_) return;  // this process leaves, and often the cluster too
  lost_(node, fmt::format("what workers on {} print is shown here no more, `shoal logs` there has it: {}", link.host, why.message()));
}

}  // namespace shoal::actors
