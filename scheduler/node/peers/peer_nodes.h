// The other nodes that this node exchanges counts and objects with: their addresses, a connection to each, and their ends.
//
// The head reports where a node is, and when the node is dead; a broken connection is made again. Changes of counts arrive once and in
// order (storage/outbox.h). Requests are repeated until they are answered. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/protocol/wire/method.h"
#include "actors/protocol/wire/node_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "storage/outbox.h"

namespace shoal::scheduler {

class PeerNodes final : public runtime::PeerHandler {
 public:
  using Item = actors::CountObjects::Change;
  using Callback = std::function<void(Result<runtime::Message>)>;
  struct Options {
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration reconnect = std::chrono::milliseconds(500);
    // How long a node cannot be reached until requests to it fail; attempts to connect go on.
    runtime::Duration unreachable_after = std::chrono::seconds(30);
    std::size_t max_gone = 10'000;      // number of dead nodes that are remembered
    std::size_t merge_beyond = 20'000;  // number of waiting changes from which they are merged (changes.h)
  };
  struct Events {
    std::function<runtime::Peer*()> head;  // returns the connection to the head; null while there is none
    std::function<void(NodeId node, const Error& why)> gone;
  };
  PeerNodes(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, Events events);
  ~PeerNodes();

  // Sets this node's id. Under a new id everything begins anew: pending requests fail, and changes that were not sent are dropped.
  void start_as(NodeId self);
  // From now on Events::gone reports the end of this node.
  void watch(NodeId node);
  void send(NodeId node, const Item& item);
  // Sends a request, and repeats it over each new connection. `callback` gets Unavailable/OwnerDied if the node is dead,
  // Unavailable/ObjectLost if it cannot be reached.
  void call(NodeId node, actors::Method method, Bytes body, Callback callback);
  // The reason why a node counts as dead; null if it does not.
  const Error* gone(NodeId node) const;

  // To be called when a head has registered this node, for the first time or again.
  void head_registered();
  void head_reported_gone(const actors::NodeGone& notice);

 private:
  struct Request {
    actors::Method method;
    Bytes body;
    Callback callback;
  };
  struct Link {
    std::string host, endpoint;  // empty until the head has answered
    bool requested_from_head = false;
    runtime::Timer next_request;  // until the question to the head is repeated
    bool dialling = false;
    std::unique_ptr<runtime::Peer> peer;
    bool met = false;  // the node has answered kMeetNode, so it has the expected id
    std::optional<runtime::TimePoint> broken_since;
    runtime::Timer redial;
    bool resting = false;  // a new connection waits for `redial`
    storage::Outbox<Item> outbox{actors::CountObjects::kMaxChanges};
    std::size_t merge_at = 0;                        // length of the queue at which changes are merged again
    std::map<std::uint64_t, Request> open_requests;  // requests without an answer, by number
  };

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer& peer, const Error& why) override;

  Link* find(NodeId node);
  void request_from_head(NodeId node);
  void reach(NodeId node);
  void meet(NodeId node, std::unique_ptr<runtime::Connection> connection);
  void broke(NodeId node, const Error& why);
  void flush_soon();
  void flush(NodeId node, Link& link);
  void send(NodeId node, Link& link, std::uint64_t number);
  void is_gone(NodeId node, const std::string& why);
  static void fail_requests(Link link, const Error& why);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const runtime::Log log_;
  const Options options_;
  const Events events_;
  NodeId self_;
  std::map<NodeId, Link> links_;
  std::uint64_t next_request_ = 1;
  bool to_flush_ = false;
  runtime::Timer flushing_;
  std::map<NodeId, Error> gone_;
  std::deque<NodeId> gone_order_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false for callbacks from before start_as()
};

}  // namespace shoal::scheduler
