#include "scheduler/head/head.h"

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using actors::Method;

// Takes nothing while it is locked.
class LockedStore final : public Store {
 public:
  Result<void> put(const actors::NodeRow& row) override { return locked ? busy() : inner_->put(row); }
  Result<void> put(const actors::JobRow& row) override { return locked ? busy() : inner_->put(row); }
  Result<std::vector<actors::NodeRow>> nodes() override { return inner_->nodes(); }
  Result<std::vector<actors::JobRow>> jobs() override { return inner_->jobs(); }
  bool locked = false;
  int num_refused = 0;

 private:
  Result<void> busy() {
    ++num_refused;
    return fail(unavailable("database is locked"));
  }
  const std::unique_ptr<Store> inner_ = make_memory_store();
};

class HeadTest : public testing::Test, public runtime::PeerHandler {
 protected:
  HeadTest() {
    EXPECT_TRUE(head_.start());
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
    actors::JobSpec spec;
    spec.wait = true;  // there is no node
    std::optional<JobId> job;
    client_->call(actors::number(Method::kSubmitJob), {to_bytes(spec), {}, {}}, 5s,
                  [&](Result<runtime::Message> r) { job = actors::from_bytes<actors::JobRef>(r.value().body).value().job; });
    EXPECT_TRUE(world_.run_until([&] { return job.has_value(); }, 5s));
    return job.value_or(JobId());
  }
  void stop(JobId job) {
    client_->call(actors::number(Method::kStopJob), {to_bytes(actors::StopJob{job, false}), {}, {}}, 5s, [](Result<runtime::Message>) {});
    world_.run_for(1s);
  }
  static Head::Options options() {
    Head::Options o;
    o.listen = {runtime::Endpoint::tcp("head", 6400)};
    return o;
  }
  std::vector<actors::JobRow> saved() { return store_.jobs().value(); }

  runtime::SimWorld world_{{}};
  LockedStore store_;
  std::unique_ptr<runtime::SimNetwork> head_network_ = world_.fabric().attach("head", 1);
  std::unique_ptr<runtime::SimNetwork> client_network_ = world_.fabric().attach("client", 2);
  Head head_{world_.clock(), world_.random(), *head_network_, store_, runtime::make_null_log(), options()};
  std::unique_ptr<runtime::Peer> client_;
  std::vector<actors::ActorRow> told_;

 private:
  void on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) override { responder.reply({}); }
  void on_notice(runtime::Peer&, runtime::Request notice) override {
    if (notice.method == actors::number(Method::kActorUpdate))
      told_.push_back(actors::from_bytes<actors::ActorRow>(notice.message.body).value());
  }
  void on_closed(runtime::Peer&, const Error&) override {}
};

TEST_F(HeadTest, WhatALockedDatabaseDidNotTakeIsWrittenLater) {
  const JobId before = submit();
  store_.locked = true;
  const JobId during = submit();
  stop(before);
  ASSERT_EQ(saved().size(), 1u);
  EXPECT_EQ(saved()[0].state, actors::JobState::kPending);
  EXPECT_GT(store_.num_refused, 1);
  store_.locked = false;
  world_.run_for(1s);
  ASSERT_EQ(saved().size(), 2u);
  for (const auto& row : saved()) {
    EXPECT_EQ(row.state, row.id == before ? actors::JobState::kStopped : actors::JobState::kPending);
    EXPECT_TRUE(row.id == before || row.id == during);
  }
}

// So that a call made after kill() returned fails, whatever the process still does.
TEST_F(HeadTest, WhoKillsAnActorHearsOfItsDeathBeforeTheAnswer) {
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  client_->call(actors::number(Method::kCreateGang), {to_bytes(gang), {}, {}}, 5s, [](Result<runtime::Message> r) { EXPECT_TRUE(r); });
  world_.run_for(1s);
  EXPECT_TRUE(told_.empty());  // there is no node for it
  bool answered = false;
  client_->call(actors::number(Method::kKillActor), {to_bytes(actors::ActorRef{gang.actors[0].id}), {}, {}}, 5s,
                [&](Result<runtime::Message> r) {
                  answered = true;
                  ASSERT_TRUE(r);
                  ASSERT_EQ(told_.size(), 1u);
                  EXPECT_EQ(told_[0].state, actors::ActorState::kDead);
                });
  ASSERT_TRUE(world_.run_until([&] { return answered; }, 5s));
}

}  // namespace
}  // namespace shoal::scheduler
