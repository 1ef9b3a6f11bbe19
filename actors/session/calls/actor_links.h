// The connections of this process to processes of actors, one per endpoint. Loop thread only.
//
// A link exists from the first dial of its endpoint until it is dropped. It is made again after each end, after a pause, as long as its
// owner wants it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/net/peer.h"

namespace shoal::actors {

struct ActorLink {
  std::unique_ptr<runtime::Peer> peer;  // null while it is not connected
  // The present connection:
  std::uint64_t connection = 0;  // its number
  bool full = false;             // until it is drained
  bool introduced = false;       // this process's id was sent on it
  bool made = false;             // kMade was received on it

  runtime::Timer redial;
  std::optional<runtime::TimePoint> broken_since;
};

class ActorLinks {
 public:
  struct Options {
    runtime::Duration connect_timeout;
    runtime::Duration redial_after;
    std::size_t high_water_bytes;
  };
  // On the loop, about the link of this endpoint.
  struct Events {
    std::function<void(const std::string&)> opened;
    std::function<void(const std::string&, const Error&)> failed;
    // `broken_for`: the time since the link was connected last.
    std::function<void(std::string, Error, runtime::Duration broken_for)> redial_due;
  };
  // `handler` handles the peers' messages and outlives this.
  ActorLinks(runtime::Clock& clock, runtime::Network& network, Options options, runtime::PeerHandler& handler, Events events)
      : clock_(clock), network_(network), options_(options), handler_(handler), events_(std::move(events)) {}
  ~ActorLinks() { clear(); }

  ActorLink* find(const std::string& endpoint);
  const ActorLink* find(const std::string& endpoint) const { return const_cast<ActorLinks*>(this)->find(endpoint); }
  bool connected(const std::string& endpoint) const;
  // The link, if calls can be sent on it now; null when they have to wait: until opened(), or until it is drained.
  ActorLink* open(const std::string& endpoint);
  // Calls stay queued until the link is drained.
  void now_full(ActorLink& link) { link.full = any_full_ = true; }
  // The link with this peer, and its endpoint; null: none.
  std::pair<const std::string, ActorLink>* with(const runtime::Peer& peer);

  // Connects; opened() or failed() follows, perhaps at once.
  void dial(const std::string& endpoint);
  // A connection ended or was not made: redial_due() follows after the pause.
  void redial_later(const std::string& endpoint, const Error& why);
  void drop(const std::string& endpoint) { links_.erase(endpoint); }
  // The endpoint of a link that was full and is drained now; empty: none.
  std::string drained(const runtime::Peer& peer);
  // Ends all connections: their calls fail. No event follows.
  void clear();

 private:
  runtime::Clock& clock_;
  runtime::Network& network_;
  const Options options_;
  runtime::PeerHandler& handler_;
  const Events events_;
  std::map<std::string, ActorLink> links_;  // by endpoint
  bool any_full_ = false;
  std::uint64_t next_connection_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
