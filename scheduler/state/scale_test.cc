// Answers to readers in a large cluster: 20,000 actors, 10,000 jobs and 10,000 nodes.
#include <gtest/gtest.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "actors/protocol/wire/inspection.h"
#include "runtime/net/frame.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {
namespace {

using actors::ActorState;
using actors::from_bytes;
using actors::ListRequest;
using actors::Resources;

constexpr std::uint64_t kActors = 20'000, kJobs = 10'000, kNodes = 10'000;
const runtime::FrameLimits kLimits;

template <class Row>
void put(std::vector<Record>& out, TableName table, std::uint64_t id, const Row& row) {
  out.push_back({table, id, "", "", rows::to_record(row)});
}

class ScaleTest : public testing::Test {
 protected:
  ScaleTest() {
    std::vector<Record> records;
    for (std::uint64_t i = 1; i <= kNodes; ++i) {
      rows::Node node;
      node.row.id = NodeId{i};
      node.row.host = "node-" + std::to_string(i) + ".rack-of-many.row-of-racks.cluster.datacenter.example.org";
      node.row.endpoint = node.row.host + ":7000";
      node.row.total = Resources::of({{"CPU", 64}, {"memory", 1e12}, {"object_store_memory", 3e11}, {"node:" + node.row.host, 1}}).value();
      node.row.labels = {{"rack", std::string(i % 20 == 0 ? 60'000 : 10, 'r')}};
      put(records, TableName::kNodes, i, node);
    }
    for (std::uint64_t i = 1; i <= kJobs; ++i) {
      rows::Job job;
      job.row.id = JobId{i};
      job.row.name = "job " + std::to_string(i);
      job.row.state = actors::JobState::kRunning;
      job.row.submission.entrypoint = std::string(i % 100 == 0 ? 60'000 : 10, 'e');
      job.attached = true;
      put(records, TableName::kJobs, i, job);
    }
    for (std::uint64_t i = 1; i <= kActors; ++i) {
      rows::Gang gang;
      gang.spec.id = GangId{i};
      gang.spec.job = JobId{i % 100 + 1};
      const bool alike = i <= kActors - 200;
      const std::string name = alike ? "Trainer" : "Kind" + std::to_string(i);
      gang.spec.actors = {{ActorId{i}, name, Resources::of({{"absent", alike ? 1 : static_cast<double>(i)}}).value()}};
      gang.order = i;
      put(records, TableName::kGangs, i, gang);
      actors::ActorRow actor;
      actor.id = ActorId{i};
      actor.class_name = name;
      actor.job = gang.spec.job;
      actor.gang = gang.spec.id;
      actor.attributes = {{"rows", std::string(i % 1000 == 0 ? 60'000 : 5, '9')}};
      if (i % 2 == 0) {
        actor.cause = unavailable(std::string(2000, '\xff')).with_hint(std::string(2000, 'h')).in(std::string(4000, 'c')).in("d");
      }
      put(records, TableName::kActors, i, actor);
    }
    state_.restore(records);
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
