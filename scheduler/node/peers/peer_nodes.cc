#include "scheduler/node/peers/peer_nodes.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/protocol/wire/head_messages.h"
#include "scheduler/node/peers/changes.h"

namespace shoal::scheduler {

using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;
using runtime::Peer;

namespace {
Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }
}  // namespace

PeerNodes::PeerNodes(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, Events events)
    : clock_(clock), network_(network), log_(std::move(log)), options_(options), events_(std::move(events)) {}

PeerNodes::~PeerNodes() { *alive_ = false; }

void PeerNodes::start_as(NodeId self) {
  *std::exchange(alive_, std::make_shared<bool>(true)) = false;
  self_ = self;
  to_flush_ = false;
  const Error why = unavailable("this node was declared dead, and joined again as another node").with_reason("OwnerDied");
  for (auto& [node, link] : std::exchange(links_, {})) fail_requests(std::move(link), why);
}

PeerNodes::Link* PeerNodes::find(NodeId node) {
  const auto it = links_.find(node);
  return it == links_.end() ? nullptr : &it->second;
}

const Error* PeerNodes::gone(NodeId node) const {
  const auto it = gone_.find(node);
  return it == gone_.end() ? nullptr : &it->second;
}

void PeerNodes::watch(NodeId node) {
  if (gone(node) != nullptr || links_.contains(node)) return;
  links_.try_emplace(node);
  request_from_head(node);
}

void PeerNodes::send(NodeId node, const Item& item) {
  if (gone(node) != nullptr) return;
  watch(node);
  if (Link* const link = find(node)) {
    link->outbox.add(item);
    if (auto& waiting = link->outbox.waiting(); waiting.size() >= std::max(options_.merge_beyond, link->merge_at)) {
      waiting = merged(waiting);
      link->merge_at = 2 * waiting.size();
      log_->warn("neighbour={} host={}: {} changes wait to be sent", to_string(node), link->host, waiting.size());
    }
  }
  flush_soon();
}

void PeerNodes::call(NodeId node, Method method, Bytes bytes, Callback callback) {
  watch(node);
  if (const Error* const why = gone(node)) return callback(fail(*why));
  Link& link = links_.at(node);
  const auto number = next_request_++;
  link.open_requests.emplace(number, Request{method, std::move(bytes), std::move(callback)});
  if (link.met && link.peer && link.peer->connected()) return send(node, link, number);
  reach(node);
}

// ---- where a node is ---------------------------------------------------------------------------------------------------------------

void PeerNodes::request_from_head(NodeId node) {
  Peer* const head = events_.head();
  Link& link = links_.at(node);
  if (head == nullptr || link.requested_from_head) return;
  link.requested_from_head = true;
  head->call(number(Method::kWatchNode), body(to_bytes(actors::NodeRef{node})), Peer::kNoTimeout, [this, alive = alive_, node](auto r) {
    Link* const link = *alive ? find(node) : nullptr;
    if (link == nullptr) return;
    if (!r && r.error().code() == Code::kNotFound) return is_gone(node, r.error().message());
    // Asks again after a pause, since a head that closes its connection or refuses would do the same at once.
    if (!r) {
      link->requested_from_head = false;
      link->next_request = clock_.after(options_.reconnect, [this, node] { request_from_head(node); });
      if (!link->peer && !link->dialling && !link->resting) broke(node, r.error());
      return;
    }
    const auto reply = from_bytes<actors::ListReply>(r->body);
    if (!reply || reply->nodes.size() != 1) return is_gone(node, "the head sent a malformed answer about it");
    link->host = reply->nodes[0].host;
    link->endpoint = reply->nodes[0].endpoint;
    if (reply->nodes[0].state == actors::NodeState::kDead) return is_gone(node, "it was declared dead");
    reach(node);
  });
}

void PeerNodes::head_registered() {
  for (auto& [node, link] : links_) link.requested_from_head = false;
  std::vector<NodeId> all;
  for (const auto& [node, link] : links_) all.push_back(node);
  for (const NodeId node : all) {
    if (find(node) != nullptr) request_from_head(node);
  }
}

void PeerNodes::head_reported_gone(const actors::NodeGone& notice) {
  if (find(notice.node) != nullptr) is_gone(notice.node, notice.cause.message());
}

void PeerNodes::is_gone(NodeId node, const std::string& why) {
  auto link = links_.extract(node);
  const std::string host = link.empty() || link.mapped().host.empty() ? "unknown" : link.mapped().host;
  const Error lost = unavailable(fmt::format("the node that had this object is gone: node {} on host {}: {}", to_string(node), host, why))
                         .with_reason("OwnerDied");
  log_->info("neighbour={} host={} gone: {}", to_string(node), host, why);
  gone_.insert_or_assign(node, lost);
  gone_order_.push_back(node);
  if (gone_order_.size() > options_.max_gone) {
    gone_.erase(gone_order_.front());
    gone_order_.pop_front();
  }
  // Reports the end before the requests fail, so that their callbacks make no further requests to the node.
  events_.gone(node, lost);
  if (!link.empty()) fail_requests(std::move(link.mapped()), lost);
}

void PeerNodes::fail_requests(Link link, const Error& why) {
  for (auto& [n, request] : link.open_requests) request.callback(fail(why));
}

// ---- the connection ----------------------------------------------------------------------------------------------------------------

void PeerNodes::reach(NodeId node) {
  Link& link = links_.at(node);
  if (link.peer || link.dialling || link.resting) return;
  if (link.outbox.size() == 0 && link.open_requests.empty()) return;  // there is nothing to send
  if (link.endpoint.empty()) {
    if (!link.requested_from_head && events_.head() == nullptr)
      return broke(node, unavailable("no head is connected that could resolve its address"));
    return request_from_head(node);
  }
  const auto to = runtime::parse_endpoint(link.endpoint);
  if (!to) return broke(node, to.error());
  link.dialling = true;
  network_.connect(*to, runtime::Role::kNode, options_.connect_timeout,
                   [this, alive = alive_, node](Result<std::unique_ptr<runtime::Connection>> connection) {
                     Link* const link = *alive ? find(node) : nullptr;
                     if (link == nullptr) return;
                     link->dialling = false;
                     if (!connection) return broke(node, connection.error());
                     meet(node, *std::move(connection));
                   });
}

void PeerNodes::meet(NodeId node, std::unique_ptr<runtime::Connection> connection) {
  Link& link = links_.at(node);
  link.peer = std::make_unique<Peer>(std::move(connection), clock_, *this);
  link.met = false;
  link.peer->call(number(Method::kMeetNode), body(to_bytes(actors::MeetNode{self_, node})), options_.connect_timeout,
                  [this, alive = alive_, node](Result<Message> r) {
                    Link* const link = *alive ? find(node) : nullptr;
                    if (link == nullptr || !link->peer || !link->peer->connected()) return;  // on_closed() has handled it
                    if (!r && r.error().reason() == "AnotherNode") return is_gone(node, r.error().message());
                    if (!r) {
                      const auto owned = std::move(link->peer);
                      return broke(node, r.error());
                    }
                    link->met = true;
                    link->broken_since.reset();
                    log_->info("neighbour={} host={} connected", to_string(node), link->host);
                    std::vector<std::uint64_t> numbers;
                    for (const auto& [n, request] : link->open_requests) numbers.push_back(n);
                    flush(node, *link);
                    for (const auto n : numbers) {
                      if (Link* const now = find(node); now != nullptr && now->open_requests.contains(n)) send(node, *now, n);
                    }
                  });
}

void PeerNodes::broke(NodeId node, const Error& why) {
  Link& link = links_.at(node);
  link.outbox.lost();
  if (!link.broken_since) {
    link.broken_since = clock_.now();
    log_->warn("neighbour={} host={} not reached: {}", to_string(node), link.host, why.message());
  }
  link.resting = true;
  link.redial = clock_.after(options_.reconnect, [this, node] {
    links_.at(node).resting = false;
    reach(node);
  });
  if (clock_.now() - *link.broken_since < options_.unreachable_after) return;
  const Error lost = unavailable(fmt::format("the node that has this object cannot be reached: node {} on host {}: {}", to_string(node),
                                             link.host.empty() ? "unknown" : link.host, why.message()))
                         .with_reason("ObjectLost");
  for (auto& [n, request] : std::exchange(link.open_requests, {})) request.callback(fail(lost));
}

void PeerNodes::on_request(Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a node accepts no requests over a connection that it made"));
}

void PeerNodes::on_closed(Peer& peer, const Error& why) {
  for (auto& [node, link] : links_) {
    if (link.peer.get() != &peer) continue;
    const auto owned = std::move(link.peer);  // the connection, which has called this function, lives until it returns
    return broke(NodeId(node), why);
  }
}

// ---- messages ----------------------------------------------------------------------------------------------------------------------

// Sends the changes later, so that all those of one turn of the loop go in one message.
void PeerNodes::flush_soon() {
  if (std::exchange(to_flush_, true)) return;
  flushing_ = clock_.after(runtime::Duration::zero(), [this] {
    to_flush_ = false;
    std::vector<NodeId> all;
    for (const auto& [node, link] : links_) all.push_back(node);
    for (const NodeId node : all) {
      if (Link* const link = find(node)) flush(node, *link);
    }
  });
}

void PeerNodes::flush(NodeId node, Link& link) {
  if (!link.met || !link.peer || !link.peer->connected()) return reach(node);
  const auto* const parcel = link.outbox.next();
  if (parcel == nullptr) return;
  link.peer->call(number(Method::kCountObjects), body(to_bytes(actors::CountObjects{parcel->items, parcel->number})), Peer::kNoTimeout,
                  [this, alive = alive_, node](Result<Message> r) {
                    Link* const link = *alive ? find(node) : nullptr;
                    if (link == nullptr || !link->peer || !link->peer->connected()) return;  // on_closed() has handled it
                    if (!r) log_->warn("neighbour={} refused counts: {}", to_string(node), r.error().message());
                    link->outbox.acknowledged();
                    flush(node, *link);
                  });
}

void PeerNodes::send(NodeId node, Link& link, std::uint64_t n) {
  const Request& request = link.open_requests.at(n);
  link.peer->call(number(request.method), body(request.body.clone()), Peer::kNoTimeout, [this, alive = alive_, node, n](Result<Message> r) {
    Link* const link = *alive ? find(node) : nullptr;
    // The request stays in `open_requests`, and is sent again over the next connection.
    if (link == nullptr || (!r && (!link->peer || !link->peer->connected()))) return;
    const auto over = link->open_requests.extract(n);
    if (!over.empty()) over.mapped().callback(std::move(r));
  });
}

}  // namespace shoal::scheduler
