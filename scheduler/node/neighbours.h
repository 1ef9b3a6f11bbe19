// The other nodes that this one has to do with: where they are, a connection to each, and whether they are still there.
//
// The head says where a node is, and when it was given up; a connection that breaks is made again. What is told arrives once and in order
// (storage/outbox.h), what is asked is asked again until it is answered. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/wire/messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "storage/outbox.h"

namespace shoal::scheduler {

class Neighbours final : public runtime::PeerHandler {
 public:
  using Item = actors::CountObjects::Change;
  using Callback = std::function<void(Result<runtime::Message>)>;
  struct Options {
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration reconnect = std::chrono::milliseconds(500);
    runtime::Duration unreachable_after = std::chrono::seconds(30);  // of attempts: then what was asked fails, and the attempts go on
    std::size_t max_gone = 10'000;                                   // that are remembered
    std::size_t merge_beyond = 20'000;                               // of changes that one is not told yet (changes.h)
  };
  struct Events {
    std::function<runtime::Peer*()> head;  // null while there is none
    std::function<void(NodeId node, const Error& why)> gone;
  };
  Neighbours(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, Events events);
  ~Neighbours();

  // This node has that name now. What it had to do with others under another one is over: what was asked fails.
  void start_as(NodeId self);
  // From now on its end is told (Events::gone).
  void watch(NodeId node);
  void tell(NodeId node, const Item& item);
  // Asked again over each new connection. Unavailable/OwnerDied when the node is gone, Unavailable/ObjectLost when it cannot be reached.
  void call(NodeId node, actors::Method method, Bytes body, Callback callback);
  // Why a node is gone, if it is.
  const Error* gone(NodeId node) const;

  // There is a head again, or for the first time.
  void head_is_here();
  void head_said_gone(const actors::NodeGone& news);

 private:
  struct Asked {
    actors::Method method;
    Bytes body;
    Callback callback;
  };
  struct Link {
    std::string host, endpoint;  // empty until the head has said so
    bool asked_head = false;
    runtime::Timer asking;  // it again
    bool dialling = false;
    std::unique_ptr<runtime::Peer> peer;
    bool met = false;  // it is the one that was meant
    std::optional<runtime::TimePoint> broken_since;
    runtime::Timer redial;
    bool resting = false;  // until then
    storage::Outbox<Item> outbox{actors::CountObjects::kMaxChanges};
    std::size_t merge_at = 0;              // what waits there, at the least
    std::map<std::uint64_t, Asked> asked;  // in the order in which it was
  };

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer& peer, const Error& why) override;

  Link* find(NodeId node);
  void ask_head(NodeId node);
  void reach(NodeId node);
  void meet(NodeId node, std::unique_ptr<runtime::Connection> connection);
  void broke(NodeId node, const Error& why);
  void flush_soon();
  void flush(NodeId node, Link& link);
  void send(NodeId node, Link& link, std::uint64_t number);
  void is_gone(NodeId node, const std::string& why);
  static void fail_asked(Link link, const Error& why);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const runtime::Log log_;
  const Options options_;
  const Events events_;
  NodeId self_;
  std::map<NodeId, Link> links_;
  std::uint64_t next_asked_ = 1;
  bool to_flush_ = false;
  runtime::Timer flushing_;
  std::map<NodeId, Error> gone_;
  std::deque<NodeId> gone_order_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // of what start_as began
};

}  // namespace shoal::scheduler
