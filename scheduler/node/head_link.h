// A node's link to the head: its registration, heartbeats, and reports of workers.
//
// The link tries the heads in turn until one registers the node, and does so again when the connection breaks. It then sends again what
// that head may have missed: exits, and the states of all workers. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/node/head_absence.h"
#include "scheduler/node/head_endpoints.h"

namespace shoal::scheduler {

class HeadLink {
 public:
  struct Options {
    std::vector<runtime::Endpoint> endpoints;  // endpoints of the heads, tried in turn
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration reconnect = std::chrono::milliseconds(500);
    runtime::Duration reconnect_several = std::chrono::milliseconds(100);  // as `reconnect`, with several heads
    // With several heads: the connection to a head that does not answer a heartbeat for so long is closed.
    runtime::Duration silence = std::chrono::seconds(3);
    std::size_t max_exits = 400;  // number of exits that are kept, to be reported again
    HeadAbsence::Limits absence = {};
  };
  struct Events {
    std::function<actors::RegisterNode()> registration;
    std::function<std::vector<actors::WorkerUpdate>()> workers;  // returns the states of all workers
    std::function<void()> registered;
    // Called when the head refuses this node, which it has declared dead: the node then kills its workers and joins with a new id.
    std::function<void()> fenced;
    // Called when the node has been without a head for so long that it ends. No further connection is made.
    std::function<void(const std::string& why)> orphaned;
    std::function<void(const actors::Heads&)> heads_changed;
  };
  // `handler` gets the head's requests and notices. When the connection ends, it calls closed().
  HeadLink(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, runtime::PeerHandler& handler,
           Events events);
  ~HeadLink() { *alive_ = false; }

  void connect();
  void closed(const Error& why);
  // For a node that ends: no further connection is made.
  void stop() { stopped_ = true; }

  bool is(const runtime::Peer& peer) const { return &peer == peer_.get(); }
  // The head that has registered this node; null while there is none.
  runtime::Peer* head() const { return peer_ && registered_ && peer_->connected() ? peer_.get() : nullptr; }
  std::vector<std::string> endpoints() const { return endpoints_.in_order(); }
  // To be called when the head has sent a list of all heads.
  void heads_are(const std::vector<std::string>& reported);

  void report(const actors::WorkerUpdate& worker);
  // Reports an exit now, and again to each head that registers this node later.
  void report_exit(const actors::WorkerUpdate& exit);

 private:
  void try_next(const Error& why);
  // Returns true if this was the last attempt to reach a head.
  bool gives_up(const Error& why);
  void register_node();
  void registered(Result<runtime::Message> answer);
  void set_heads(const std::vector<std::string>& reported);
  void beat();
  bool several() const { return endpoints_.size() > 1; }
  void connect_after(runtime::Duration pause);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const runtime::Log log_;
  const Options options_;
  runtime::PeerHandler& handler_;
  const Events events_;
  HeadEndpoints endpoints_;
  HeadAbsence absence_;
  std::size_t tried_ = 0;  // number of heads tried since the last registration
  std::unique_ptr<runtime::Peer> peer_;
  bool registered_ = false;
  bool expiry_reported_ = false;  // an expired certificate was logged since the last registration
  bool stopped_ = false;
  // A list of heads that came before the answer to the registration. It is newer than the list in that answer, and takes its place.
  std::optional<std::vector<std::string>> early_heads_;
  std::chrono::milliseconds heartbeat_{500};
  runtime::Timer reconnecting_, beating_;
  std::deque<actors::WorkerUpdate> exits_;  // the last exits, to be reported again
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
