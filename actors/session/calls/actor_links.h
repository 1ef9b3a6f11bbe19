// The connections of this process to processes of actors, one per endpoint. Loop thread only.
//
// A link exists from the first dial of its endpoint until it is dropped. After each end of its connection, redial_due() follows after a
// pause; the owner of this class then dials again or drops the link.
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
  std::unique_ptr<runtime::Peer> peer;  // null while the link is not connected
  // State of the present connection.
  std::uint64_t connection = 0;  // its number, which no other connection of this process has
  bool full = false;             // its queue is above the high-water mark
  bool introduced = false;       // this process's id was sent on this connection
  bool constructed = false;      // kConstructed was received on this connection

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
  // Events on the loop. The first argument is the endpoint of the link.
  struct Events {
    std::function<void(const std::string&)> opened;
    std::function<void(const std::string&, const Error&)> failed;
    // `broken_for`: the time since the link was connected last.
    std::function<void(std::string, Error, runtime::Duration broken_for)> redial_due;
  };
  // `handler` gets the messages of all links and outlives this object.
  ActorLinks(runtime::Clock& clock, runtime::Network& network, Options options, runtime::PeerHandler& handler, Events events)
      : clock_(clock), network_(network), options_(options), handler_(handler), events_(std::move(events)) {}
  ~ActorLinks() { clear(); }

  ActorLink* find(const std::string& endpoint);
  const ActorLink* find(const std::string& endpoint) const { return const_cast<ActorLinks*>(this)->find(endpoint); }
  bool connected(const std::string& endpoint) const;
  // The link, if calls can be sent on it now. Null if they have to wait: for Events::opened, or until a full link has drained.
  ActorLink* open(const std::string& endpoint);
  // No call is sent on this link until its queue has drained.
  void now_full(ActorLink& link) { link.full = any_full_ = true; }
  // The link whose connection is `peer`, with its endpoint; null if no link has it.
  std::pair<const std::string, ActorLink>* with(const runtime::Peer& peer);

  // Connects to the endpoint; Events::opened or Events::failed follows, perhaps at once.
  void dial(const std::string& endpoint);
  // The connection ended or was not made: Events::redial_due follows after a pause.
  void redial_later(const std::string& endpoint, const Error& why);
  void drop(const std::string& endpoint) { links_.erase(endpoint); }
  // The endpoint of the link with this peer, if the link was full and has drained; else empty.
  std::string drained(const runtime::Peer& peer);
  // Ends all connections, so that the calls on them fail. No event follows.
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
