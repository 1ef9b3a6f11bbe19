#include "actors/session/calls/actor_links.h"

#include <algorithm>
#include <utility>

namespace shoal::actors {

ActorLink* ActorLinks::find(const std::string& endpoint) {
  const auto it = links_.find(endpoint);
  return it == links_.end() ? nullptr : &it->second;
}

bool ActorLinks::connected(const std::string& endpoint) const {
  const ActorLink* const link = find(endpoint);
  return link != nullptr && link->peer != nullptr;
}

ActorLink* ActorLinks::open(const std::string& endpoint) {
  ActorLink* const link = find(endpoint);
  if (link == nullptr || link->peer == nullptr) return nullptr;
  if (link->peer->queued_bytes() <= options_.high_water_bytes) return link;
  now_full(*link);
  return nullptr;
}

std::pair<const std::string, ActorLink>* ActorLinks::with(const runtime::Peer& peer) {
  const auto it = std::find_if(links_.begin(), links_.end(), [&](const auto& entry) { return entry.second.peer.get() == &peer; });
  return it == links_.end() ? nullptr : &*it;
}

void ActorLinks::dial(const std::string& endpoint) {
  links_[endpoint];
  const auto parsed = runtime::parse_endpoint(endpoint);
  if (!parsed) return events_.failed(endpoint, parsed.error());
  network_.connect(*parsed, runtime::Role::kWorker, options_.connect_timeout,
                   [this, alive = alive_, endpoint](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (!*alive) return;
                     if (!connection) return events_.failed(endpoint, connection.error());
                     ActorLink& link = links_[endpoint];
                     link.peer = std::make_unique<runtime::Peer>(*std::move(connection), clock_, handler_);
                     link.connection = next_connection_++;
                     link.full = link.introduced = link.constructed = false;
                     link.broken_since.reset();
                     events_.opened(endpoint);
                   });
}

void ActorLinks::redial_later(const std::string& endpoint, const Error& why) {
  ActorLink& link = links_[endpoint];
  if (!link.broken_since) link.broken_since = clock_.now();
  link.redial = clock_.after(options_.redial_after, [this, endpoint, why] {
    events_.redial_due(endpoint, why, clock_.now() - *links_.at(endpoint).broken_since);
  });
}

std::string ActorLinks::drained(const runtime::Peer& peer) {
  std::string out;
  if (!std::exchange(any_full_, false)) return out;
  for (auto& [endpoint, link] : links_) {
    if (link.peer.get() == &peer && std::exchange(link.full, false)) out = endpoint;
    any_full_ |= link.full;
  }
  return out;
}

void ActorLinks::clear() {
  *alive_ = false;
  links_.clear();
}

}  // namespace shoal::actors
