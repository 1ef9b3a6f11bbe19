// A cluster with 20,000 actors, 10,000 jobs and 10,000 nodes: replies to requests for lists, status and metrics fit into messages, and a
// tick visits no entry that only waits.
#include <gtest/gtest.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "actors/protocol/wire/inspection.h"
#include "runtime/net/frame.h"
#include "scheduler/state/many_rows.h"

namespace shoal::scheduler {
namespace {

using actors::from_bytes;
using actors::ListRequest;
using actors::Resources;

constexpr std::uint64_t kActors = 20'000, kJobs = 10'000, kNodes = 10'000;
const runtime::FrameLimits kLimits;

class ScaleTest : public testing::Test {
 protected:
  ScaleTest() {
    state_.restore(many_rows({kActors, kJobs, kNodes}));
    EXPECT_TRUE(state_.set_aside().empty());
  }
  // Reads all pages, each of which has to fit a frame, and returns the rows.
  actors::ListReply all(ListRequest::What what) {
    auto rows = actors::list_all({what, {}, 0}, [&](const Bytes& request) {
      const Bytes page = to_bytes(state_.list(from_bytes<ListRequest>(request).value()));
      EXPECT_LE(page.size(), kLimits.max_body_bytes);
      return from_bytes<actors::ListReply>(page);
    });
    EXPECT_TRUE(rows) << rows.error().message();
    return std::move(rows).value_or(actors::ListReply());
  }

  runtime::SeededRandom random_{1};
  ClusterState state_{{}, random_};
};

TEST_F(ScaleTest, EveryListComesInPagesThatFitAMessage) {
  EXPECT_EQ(all(ListRequest::What::kActors).actors.size(), kActors);
  EXPECT_EQ(all(ListRequest::What::kJobs).jobs.size(), kJobs);
  EXPECT_EQ(all(ListRequest::What::kNodes).nodes.size(), kNodes);
}

TEST_F(ScaleTest, TheStatusSumsWhatWaits) {
  const Bytes message = to_bytes(state_.status());
  EXPECT_LE(message.size(), kLimits.max_body_bytes);
  const auto status = from_bytes<actors::ClusterStatus>(message);
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(status->num_nodes, kNodes);
  EXPECT_EQ(status->num_actors, kActors);
  EXPECT_EQ(status->num_pending, kActors);
  ASSERT_EQ(status->pending.size(), 101u);  // Trainer, 99 other kinds, and the number of those that are not named
  EXPECT_NE(status->pending[0].find("Trainer: can never start"), std::string::npos) << status->pending[0];
  EXPECT_TRUE(status->pending[0].ends_with(" (19800 alike)")) << status->pending[0];
  EXPECT_TRUE(status->pending[100].starts_with("101 others")) << status->pending[100];
}

// 30,000 entries that wait cost a tick nothing once they are explained, and known to need no window.
TEST(IdleTest, ATickVisitsNoEntryThatOnlyWaits) {
  using namespace std::chrono_literals;
  runtime::SeededRandom random{1};
  ClusterState state({}, random);
  runtime::TimePoint now{1h};
  state.advance(now, 1);
  state.restore(many_rows({.node_state = actors::NodeState::kDead, .job_state = actors::JobState::kPending}));
  ASSERT_EQ(state.status().num_pending, kActors + kJobs);
  actors::RegisterNode node;
  node.id = NodeId{kNodes + 1};
  node.host = "127.0.0.1";
  node.resources = Resources::from_amounts({{"CPU", 1}}).value();
  ASSERT_TRUE(state.step(NodeJoined{node}));
  const auto ticks = [&](runtime::Duration time) {
    const auto before = state.num_visits();
    for (const auto end = now + time; now < end;) {
      now += 200ms;
      state.advance(now, 1);
      state.step(NodeBeat{node.id});
      state.step(Tick{});
    }
    return state.num_visits() - before;
  };
  ticks(40s);
  const auto* const last = state.actor(ActorId{kActors});
  EXPECT_NE(last->pending_reason.find("absent"), std::string::npos) << last->pending_reason;
  EXPECT_NE(state.job(JobId{kJobs})->pending_reason.find("absent"), std::string::npos);
  EXPECT_EQ(ticks(15s), 0u);
  ticks(10s);  // with a search for an entry that needs a window, of which one is due per `patience`
  EXPECT_EQ(ticks(15s), 0u);

  actors::GangSpec newcomer;
  newcomer.id = GangId{kActors + 1};
  newcomer.job = state.step(DriverJoined{{"script.py", 100, {}}});
  newcomer.actors = {{ActorId{kActors + 1}, "Trainer", Resources::from_amounts({{"absent", 1}}).value()}};
  const auto before = state.num_visits();
  ASSERT_TRUE(state.step(GangRequested{newcomer}));
  EXPECT_EQ(state.num_visits() - before, 1u);
  EXPECT_EQ(ticks(5s), 5u);  // until it has waited for a second, and its job is warned
  EXPECT_EQ(state.actor(ActorId{kActors + 1})->pending_reason, state.actor(ActorId{1})->pending_reason);
}

TEST_F(ScaleTest, SumsOverNodesLeaveOutNamesOfSingleNodesFirst) {
  const auto sums = from_bytes<actors::ClusterStatus>(to_bytes(state_.resources({}))).value();
  EXPECT_EQ(sums.total.units("CPU"), static_cast<std::int64_t>(64 * kNodes) * Resources::kUnit);
  EXPECT_EQ(sums.total.units("memory"), INT64_MAX);  // more than the type can have
  EXPECT_EQ(sums.total.all().size(), actors::RowBounds::kMaxResources);
  EXPECT_EQ(sums.resources_left_out, kNodes + 3 - actors::RowBounds::kMaxResources);
}

TEST_F(ScaleTest, TheMetricsOfAllNodesCanBeRead) {
  const Bytes message = to_bytes(actors::ReportedMetrics{state_.metrics()});
  EXPECT_LE(message.size(), kLimits.max_payload_bytes);
  const auto metrics = from_bytes<actors::ReportedMetrics>(message);
  ASSERT_TRUE(metrics) << metrics.error().message();
  EXPECT_EQ(metrics->metrics.back().samples.size(), 4 * kNodes);
}

}  // namespace
}  // namespace shoal::scheduler
