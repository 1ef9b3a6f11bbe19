#include "scheduler/head/node_links.h"

#include <utility>

namespace shoal::scheduler {

using actors::Method;
using actors::number;
using runtime::Message;
using runtime::Peer;

const Peer* NodeLinks::find(NodeId node) const {
  const auto it = links_.find(node);
  return it == links_.end() ? nullptr : it->second;
}

std::optional<std::uint64_t> NodeLinks::set(NodeId node, Peer& peer) {
  Peer* const old = std::exchange(links_[node], &peer);
  return old == nullptr || old == &peer ? std::nullopt : std::optional(old->number());
}

std::optional<std::uint64_t> NodeLinks::drop(NodeId node) {
  const auto link = links_.extract(node);
  return link.empty() ? std::nullopt : std::optional(link.mapped()->number());
}

bool NodeLinks::closed(NodeId node, const Peer& peer) {
  const auto it = links_.find(node);
  if (it == links_.end() || it->second != &peer) return false;
  links_.erase(it);
  return true;
}

void NodeLinks::call(NodeId node, Method method, Bytes body, Callback callback) {
  const auto it = links_.find(node);
  if (it == links_.end()) {
    if (callback) callback(fail(unavailable("node " + to_string(node) + " is not connected").with_reason(kNotReached)));
    return;
  }
  if (!callback) {
    callback = [this, node, method](const Result<Message>& r) {
      if (!r) log_->warn("node={} method={} failed: {}", to_string(node), number(method), r.error().message());
    };
  }
  it->second->call(number(method), {std::move(body), {}, {}},
                   method == Method::kStartWorker ? options_.start_timeout : options_.call_timeout,
                   [this, alive = alive_, node, number = it->second->number(), callback = std::move(callback)](Result<Message> r) {
                     if (!*alive) return;
                     const auto now = links_.find(node);
                     const bool lost = now == links_.end() || now->second->number() != number || !now->second->connected();
                     if (!r && lost) return callback(fail(Error(r.error()).with_reason(kNotReached)));
                     callback(std::move(r));
                   });
}

void NodeLinks::notify(NodeId node, Method method) const {
  if (const auto it = links_.find(node); it != links_.end()) it->second->notify(number(method), {});
}

void NodeLinks::notify_all(Method method, const Bytes& body) const {
  for (const auto& [node, peer] : links_) peer->notify(number(method), {body.clone(), {}, {}});
}

}  // namespace shoal::scheduler
