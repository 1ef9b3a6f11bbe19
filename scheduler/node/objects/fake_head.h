// The head in tests of objects: it answers where nodes are, and nothing else.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/net/peer.h"
#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {

inline runtime::Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

// A head that answers where nodes are, refuses to answer, or is silent.
class FakeHead final : public runtime::PeerHandler {
 public:
  explicit FakeHead(runtime::SimWorld& world) : world_(world), network_(world.fabric().attach("head", 1)) {
    listener_ = *network_->listen(runtime::Endpoint::tcp("head", 0), [this](std::unique_ptr<runtime::Connection> c) {
      peers_.push_back(std::make_unique<runtime::Peer>(std::move(c), world_.clock(), *this));
    });
  }
  void on_request(runtime::Peer&, runtime::Request request, runtime::Responder responder) override {
    EXPECT_EQ(request.method, actors::number(actors::Method::kWatchNode));
    if (silent) return unanswered_.push_back(std::move(responder));
    if (refuses) return responder.fail(unavailable("this head leads no more"));
    actors::ListReply reply;
    reply.nodes.push_back(rows.at(actors::from_bytes<actors::NodeRef>(request.message.body)->node));
    responder.reply(body(actors::to_bytes(reply)));
  }
  void on_notice(runtime::Peer&, runtime::Request) override {}
  void on_closed(runtime::Peer&, const Error&) override {}
  void hang_up() { peers_.clear(); }
  const runtime::Endpoint& endpoint() const { return listener_->endpoint(); }

  std::map<NodeId, actors::NodeRow> rows;
  bool silent = false, refuses = false;

 private:
  runtime::SimWorld& world_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::vector<runtime::Responder> unanswered_;
  std::vector<std::unique_ptr<runtime::Peer>> peers_;
  std::unique_ptr<runtime::Listener> listener_;
};

}  // namespace shoal::scheduler
