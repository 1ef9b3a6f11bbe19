#include "scheduler/web/metrics.h"

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::scheduler::web {
namespace {

using namespace std::chrono_literals;
using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;
using runtime::Endpoint;
using runtime::Message;
using runtime::Peer;

std::vector<MetricFamily> gauge(const char* name, double value) { return {FamilyOf(MetricKind::kGauge, name, "").add(value)}; }

// The server of a head or a node; answers, or stays silent.
class Asked final : public runtime::PeerHandler {
 public:
  Asked(runtime::SimWorld& world, const std::string& name, int host) : world_(world), network_(world.fabric().attach(name, host)) {
    listener_ = *network_->listen(Endpoint::tcp(name, 0), [this](std::unique_ptr<runtime::Connection> c) {
      peers_.push_back(std::make_unique<Peer>(std::move(c), world_.clock(), *this));
    });
  }
  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    if (silent) return unanswered_.push_back(std::move(responder));
    if (static_cast<actors::Method>(request.method) == actors::Method::kList) {
      actors::ListReply reply;
      reply.nodes = rows;
      return responder.reply({to_bytes(reply), {}, {}});
    }
    EXPECT_EQ(static_cast<actors::Method>(request.method), actors::Method::kInspect);
    EXPECT_EQ(actors::from_bytes<actors::Inspect>(request.message.body)->what, actors::Inspect::What::kMetrics);
    ++asked;
    if (is_head) return responder.reply({{}, to_bytes(actors::ReportedMetrics{gauge("head", asked)}), {}});
    actors::NodeReport reported;
    reported.metrics = gauge("node", asked);
    responder.reply({{}, to_bytes(reported), {}});
  }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer&, const Error&) override {}
  Endpoint endpoint() const { return listener_->endpoint(); }
  std::size_t connections() const { return peers_.size(); }  // number of connections so far

  bool silent = false, is_head = false;
  int asked = 0;
  std::vector<actors::NodeRow> rows;

 private:
  runtime::SimWorld& world_;
  std::unique_ptr<runtime::SimNetwork> network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<runtime::Responder> unanswered_;
};

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    head_.is_head = true;
    for (auto* node : {&a_, &b_}) {
      actors::NodeRow row;
      row.id = NodeId{head_.rows.size() + 1};
      row.host = "host";
      row.endpoint = node->endpoint().to_string();
      head_.rows.push_back(row);
    }
    actors::NodeRow dead;
    dead.id = NodeId{3};
    dead.state = actors::NodeState::kDead;
    head_.rows.push_back(dead);
  }
  void collect() {
    metrics_->collect([this](const auto& all) { reported_.push_back(all ? (*all)->text : all.error().message()); });
  }
  bool says(const std::string& line) const { return !reported_.empty() && reported_.back().find(line + "\n") != std::string::npos; }

  runtime::SimWorld world_{runtime::SimWorld::Options()};
  std::unique_ptr<runtime::SimNetwork> network_ = world_.fabric().attach("http", 1);
  Asked head_{world_, "head", 1}, a_{world_, "a", 2}, b_{world_, "b", 3};
  std::vector<std::string> reported_;
  std::unique_ptr<Gateway> gateway_ =
      std::make_unique<Gateway>(world_.clock(), *network_, Gateway::Options{.head = head_.endpoint(), .logs = ""});
  std::unique_ptr<Metrics> metrics_ = std::make_unique<Metrics>(*gateway_, world_.clock());
};

TEST_F(MetricsTest, HeadAndNodesAreAskedOnRequest) {
  world_.run_for(60s);
  EXPECT_EQ(head_.asked + a_.asked + b_.asked, 0);
  collect();
  world_.run_for(500ms);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_TRUE(says("head 1")) << reported_.back();
  EXPECT_TRUE(says("node{host=\"host\",node=\"0000000000000002\"} 1")) << reported_.back();
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 0"));
}

TEST_F(MetricsTest, SimultaneousRequestsShareOneAnswer) {
  for (int i = 0; i < 10; ++i) collect();
  world_.run_for(500ms);
  collect();
  EXPECT_EQ(reported_.size(), 11u);
  EXPECT_EQ(head_.asked, 1);
  EXPECT_EQ(a_.asked, 1);
  world_.run_for(1s);
  collect();
  world_.run_for(500ms);
  EXPECT_EQ(a_.asked, 2);
  EXPECT_TRUE(says("head 2"));
}

TEST_F(MetricsTest, ASilentNodeIsLeftOutAndCounted) {
  b_.silent = true;
  collect();
  world_.run_for(3s);
  EXPECT_TRUE(reported_.empty());
  world_.run_for(2s);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 1")) << reported_.back();
  EXPECT_TRUE(says("node{host=\"host\",node=\"0000000000000001\"} 1"));
  EXPECT_EQ(reported_.back().find("0000000000000002"), std::string::npos);
}

TEST_F(MetricsTest, NodesAreAskedOverABoundedNumberOfConnections) {
  metrics_.reset();
  gateway_ =
      std::make_unique<Gateway>(world_.clock(), *network_, Gateway::Options{.head = head_.endpoint(), .logs = "", .max_node_calls = 1});
  metrics_ = std::make_unique<Metrics>(*gateway_, world_.clock());
  collect();
  world_.run_for(500ms);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 0")) << reported_.back();
  world_.run_for(1s);
  a_.silent = true;  // takes the only connection until its call is slow
  collect();
  world_.run_for(2s);
  EXPECT_EQ(b_.asked, 2);
  world_.run_for(3s);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 1")) << reported_.back();
}

TEST_F(MetricsTest, ManySilentNodesDoNotHideTheOthers) {
  metrics_.reset();
  gateway_ =
      std::make_unique<Gateway>(world_.clock(), *network_, Gateway::Options{.head = head_.endpoint(), .logs = "", .max_node_calls = 1});
  metrics_ = std::make_unique<Metrics>(*gateway_, world_.clock());
  a_.silent = true;
  const auto rows = head_.rows;
  head_.rows.assign(3, rows[0]);  // as many as may be slow at a time
  head_.rows.push_back(rows[1]);
  collect();
  world_.run_for(6s);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 3")) << reported_.back();
  EXPECT_EQ(b_.asked, 1);
  head_.rows.assign(20, rows[0]);
  const std::size_t before = a_.connections();
  collect();
  world_.run_for(3s);
  EXPECT_EQ(a_.connections() - before, 3u);
  world_.run_for(6s);  // twice the patience for one
  EXPECT_EQ(reported_.size(), 2u);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 20")) << reported_.back();
}

TEST_F(MetricsTest, ConnectionAndCallHaveOneTimeLimit) {
  b_.silent = true;
  world_.fabric().set_partitions(0, 60s);
  world_.fabric().partition("http", "b");
  collect();
  world_.run_for(3s);
  world_.fabric().heal();
  world_.run_for(1500ms);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_TRUE(says("shoal_scrape_silent_nodes 1")) << reported_.back();
}

TEST_F(MetricsTest, EndsWhileANodeIsAsked) {
  b_.silent = true;
  collect();
  world_.run_for(1s);
  metrics_.reset();
  gateway_.reset();  // fails the pending requests
  world_.run_for(10s);
  EXPECT_TRUE(reported_.empty());
}

TEST_F(MetricsTest, EndsWhileTheHeadIsAsked) {
  head_.silent = true;
  collect();
  world_.run_for(1s);
  metrics_.reset();
  gateway_.reset();
  world_.run_for(10s);
  EXPECT_TRUE(reported_.empty());
}

TEST_F(MetricsTest, WithoutAHeadEveryRequestGetsTheReason) {
  head_.silent = true;
  collect();
  collect();
  world_.run_for(30s);
  EXPECT_EQ(reported_.size(), 2u);
  head_.silent = false;
  collect();
  world_.run_for(500ms);
  EXPECT_TRUE(says("head 1"));
}

TEST_F(MetricsTest, TheTextIsMadeBesideTheLoop) {
  std::vector<std::pair<std::function<void()>, std::function<void()>>> aside;
  metrics_ = std::make_unique<Metrics>(*gateway_, world_.clock(),
                                       Metrics::Options{.aside = [&](auto work, auto then) { aside.emplace_back(work, then); }});
  collect();
  world_.run_for(500ms);
  collect();
  EXPECT_TRUE(reported_.empty());
  ASSERT_EQ(aside.size(), 1u);
  aside[0].first();
  EXPECT_TRUE(reported_.empty());
  aside[0].second();
  EXPECT_EQ(reported_.size(), 2u);
  EXPECT_TRUE(says("head 1"));
  aside.clear();
  world_.run_for(2s);
  collect();
  world_.run_for(500ms);
  metrics_.reset();  // no request waits any more
  ASSERT_EQ(aside.size(), 1u);
  aside[0].first();
  aside[0].second();
  EXPECT_EQ(reported_.size(), 2u);
}

}  // namespace
}  // namespace shoal::scheduler::web
