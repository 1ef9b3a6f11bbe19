// HeadTest: a head in a simulated world, with a store that may refuse, a client, and nodes that record what they get.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"
#include "scheduler/head/head.h"

namespace shoal::scheduler {

using namespace std::chrono_literals;
using actors::Method;

// A store that refuses commits while `locked`, and keeps them open while `slow`.
class LockedStore final : public Store {
 public:
  void commit(const std::vector<Record>& records, std::function<void(Result<void>)> done) override {
    ++num_commits;
    if (slow) {
      inner_->commit(records, [](Result<void>) {});
      done_ = std::move(done);
      return;
    }
    if (!locked) return inner_->commit(records, std::move(done));
    ++num_refused;
    done(fail(fenced ? unavailable("another head leads").with_reason("Fenced") : unavailable("database is locked")));
  }
  Result<std::vector<Record>> load() override { return inner_->load(); }
  void finish(Result<void> result = {}) { std::exchange(done_, {})(std::move(result)); }
  bool locked = false, slow = false, fenced = false;  // `fenced`: another head leads, so the store refuses this one's commits
  int num_refused = 0, num_commits = 0;

 private:
  const std::unique_ptr<Store> inner_ = make_memory_store();
  std::function<void(Result<void>)> done_;
};

class HeadTest : public testing::Test, public runtime::PeerHandler {
 protected:
  HeadTest() {
    EXPECT_TRUE(head_->start());
    client_network_->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kClient, 5s, [this](auto connection) {
      client_ = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this);
    });
    EXPECT_TRUE(world_.run_until([this] { return client_ != nullptr; }, 5s));
  }
  ~HeadTest() override {
    head_network_->crash();
    client_network_->crash();
  }

  JobId submit() {
    std::optional<JobId> job;
    client_->call(actors::number(Method::kSubmitJob), {to_bytes(waiting()), {}, {}}, 5s,
                  [&](Result<runtime::Message> r) { job = actors::from_bytes<actors::JobRef>(r.value().body).value().job; });
    EXPECT_TRUE(world_.run_until([&] { return job.has_value(); }, 5s));
    return job.value_or(JobId());
  }
  static actors::JobSpec waiting() {
    actors::JobSpec spec;
    spec.wait = true;  // wait, since the cluster has no node
    return spec;
  }
  void call(Method method, Bytes body, std::optional<Result<runtime::Message>>& answer) {
    client_->call(actors::number(method), {std::move(body), {}, {}}, 60s, [&](Result<runtime::Message> r) { answer = std::move(r); });
  }
  Head::Options options() {
    Head::Options o;
    o.listen = {runtime::Endpoint::tcp("head", 6400)};
    o.leads = [this] { return leads_; };
    o.on_fenced = [this] { ++num_fenced_; };
    o.on_ending = [this] { ++num_ending_; };
    o.on_ended = [this] { ++num_ended_; };
    o.watch_process = [this](pid_t pid, std::function<void()> gone) {
      watched_[pid] = std::move(gone);
      return std::make_shared<int>(0);
    };
    return o;
  }
  // A node's process as the head sees it: it listens, and it has joined over TCP.
  struct FakeNode {
    std::unique_ptr<runtime::SimNetwork> network;
    std::unique_ptr<runtime::Listener> listener;
    std::unique_ptr<runtime::Peer> peer;
    ~FakeNode() { network->crash(); }
  };
  void join(FakeNode& node, const std::string& host, pid_t pid, const runtime::Endpoint& at, NodeId id) {
    node.network = world_.fabric().attach(host, pid);
    node.listener = node.network->listen(at, [](std::unique_ptr<runtime::Connection>) {}).value();
    node.network->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kNode, 5s, [&](auto connection) {
      node.peer = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this);
    });
    EXPECT_TRUE(world_.run_until([&] { return node.peer != nullptr; }, 5s));
    actors::RegisterNode me;
    me.id = id;
    me.pid = 9999;  // a pid of another pid namespace
    me.endpoint = node.listener->endpoint().to_string();
    me.resources = actors::Resources::from_amounts({{"CPU", 1}}).value();
    node.peer->call(actors::number(Method::kRegisterNode), {to_bytes(me), {}, {}}, 5s, [](auto r) { EXPECT_TRUE(r); });
    world_.run_for(100ms);
    EXPECT_EQ(head_->state().node(id)->state, actors::NodeState::kAlive);
  }
  std::map<JobId, std::string> jobs_kept() {
    std::map<JobId, std::string> out;
    const auto records = store_.load().value();
    for (const auto& r : records) {
      if (r.table == TableName::kJobs) out[JobId{r.id}] = r.state;
    }
    return out;
  }

  runtime::SimWorld world_{{}};
  LockedStore store_;
  bool leads_ = true;
  int num_fenced_ = 0, num_ending_ = 0, num_ended_ = 0;
  int num_ended_nodes_ = 0;  // notices of the cluster's end that nodes got
  std::map<pid_t, std::function<void()>> watched_;
  std::unique_ptr<runtime::SimNetwork> head_network_ = world_.fabric().attach("head", 1);
  std::unique_ptr<runtime::SimNetwork> client_network_ = world_.fabric().attach("client", 2);
  std::unique_ptr<Head> head_ =
      std::make_unique<Head>(world_.clock(), world_.random(), *head_network_, store_, runtime::make_null_log(), options());
  std::unique_ptr<runtime::Peer> client_;
  std::vector<actors::ActorRow> reported_;
  bool holds_ = false;  // keep back the answers to requests that the head sends
  std::vector<std::pair<std::uint16_t, runtime::Responder>> held_;

 private:
  void on_request(runtime::Peer&, runtime::Request request, runtime::Responder responder) override {
    if (holds_) return held_.emplace_back(request.method, std::move(responder)), void();
    responder.reply({});
  }
  void on_notice(runtime::Peer&, runtime::Request notice) override {
    if (notice.method == actors::number(Method::kActorUpdate))
      reported_.push_back(actors::from_bytes<actors::ActorRow>(notice.message.body).value());
    num_ended_nodes_ += notice.method == actors::number(Method::kEndNode);
  }
  void on_closed(runtime::Peer&, const Error&) override {}
};

}  // namespace shoal::scheduler
