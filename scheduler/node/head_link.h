// A node's link to the head: its registration, heartbeats, and reports of workers.
//
// The link tries the heads in turn until one registers the node, and again after each break. It then repeats what the head may have missed:
// exits, and the states of all workers. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/wire/head_messages.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/node/head_endpoints.h"

namespace shoal::scheduler {

class HeadLink {
 public:
  struct Options {
    std::vector<runtime::Endpoint> endpoints;  // the head's, tried in turn
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration reconnect = std::chrono::milliseconds(500);
    runtime::Duration reconnect_several = std::chrono::milliseconds(100);  // with several heads
    // With several heads: a head that does not answer a heartbeat for so long is given up.
    runtime::Duration silence = std::chrono::seconds(3);
    std::size_t max_exits = 400;  // exits that are repeated
  };
  struct Events {
    std::function<actors::RegisterNode()> registration;
    std::function<std::vector<actors::WorkerUpdate>()> workers;  // states of all workers
    std::function<void()> registered;
    std::function<void()> fenced;  // the head has given this node up: it must come back as another one, without workers
    std::function<void(const actors::Heads&)> heads_changed;
  };
  // `handler`: of the head's requests and notices. It passes the end of the connection to closed().
  HeadLink(runtime::Clock& clock, runtime::Network& network, runtime::Log log, Options options, runtime::PeerHandler& handler,
           Events events);
  ~HeadLink() { *alive_ = false; }

  void connect();
  void closed(const Error& why);
  // The node ends: no further connections.
  void stop() { stopped_ = true; }

  bool is(const runtime::Peer& peer) const { return &peer == peer_.get(); }
  // The head that has registered this node; null while there is none.
  runtime::Peer* head() const { return peer_ && registered_ && peer_->connected() ? peer_.get() : nullptr; }
  std::vector<std::string> endpoints() const { return endpoints_.in_order(); }
  // A list of all heads has arrived.
  void heads_are(const std::vector<std::string>& reported);

  void report(const actors::WorkerUpdate& worker);
  // Reports an exit now, and again to a head that was away.
  void report_exit(const actors::WorkerUpdate& exit);

 private:
  void try_next(const std::string& why);
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
  std::size_t tried_ = 0;  // heads since the last registration
  std::unique_ptr<runtime::Peer> peer_;
  bool registered_ = false;
  bool stopped_ = false;
  // A list that arrived before the answer to the registration, and is newer than the one in that answer.
  std::optional<std::vector<std::string>> early_heads_;
  std::chrono::milliseconds heartbeat_{500};
  runtime::Timer reconnecting_, beating_;
  std::deque<actors::WorkerUpdate> exits_;  // repeated to a head that reconnects
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
