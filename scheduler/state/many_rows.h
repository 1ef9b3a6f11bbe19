// The stored rows of a large cluster, for tests: actors that wait, jobs and nodes. Some rows are as large as their bounds allow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

struct ManyRows {
  std::uint64_t actors = 20'000, jobs = 10'000, nodes = 10'000;
  actors::NodeState node_state = actors::NodeState::kAlive;
  actors::JobState job_state = actors::JobState::kRunning;
  JobId owner = {};  // the job of all actors; without it, the first 100 jobs have as many each
};

inline std::vector<Record> many_rows(const ManyRows& how) {
  using actors::Resources;
  std::vector<Record> out;
  const auto put = [&out](TableName table, std::uint64_t id, const auto& row) { out.push_back({table, id, "", "", rows::to_record(row)}); };
  for (std::uint64_t i = 1; i <= how.nodes; ++i) {
    rows::Node node;
    node.row.id = NodeId{i};
    node.row.state = how.node_state;
    node.row.host = "node-" + std::to_string(i) + ".rack-of-many.row-of-racks.cluster.datacenter.example.org";
    node.row.endpoint = node.row.host + ":7000";
    node.row.total =
        Resources::from_amounts({{"CPU", 64}, {"memory", 1e12}, {"object_store_memory", 3e11}, {"node:" + node.row.host, 1}}).value();
    node.row.labels = {{"rack", std::string(i % 20 == 0 ? 60'000 : 10, 'r')}};
    put(TableName::kNodes, i, node);
  }
  const Resources absent = Resources::from_amounts({{"absent", 1}}).value();
  for (std::uint64_t i = 1; i <= how.jobs; ++i) {
    rows::Job job;
    job.row.id = JobId{i};
    job.row.name = "job " + std::to_string(i);
    job.row.state = how.job_state;
    job.row.submission.id = "submission-" + std::to_string(i);
    job.row.submission.entrypoint = std::string(i % 100 == 0 ? 60'000 : 10, 'e');
    job.attached = how.job_state == actors::JobState::kRunning;
    job.wants = {absent};
    job.order = how.actors + i;
    put(TableName::kJobs, i, job);
  }
  for (std::uint64_t i = 1; i <= how.actors; ++i) {
    rows::Gang gang;
    gang.spec.id = GangId{i};
    gang.spec.job = how.owner ? how.owner : JobId{i % 100 + 1};
    const bool alike = i + 200 <= how.actors;
    const std::string name = alike ? "Trainer" : "Kind" + std::to_string(i);
    gang.spec.actors = {{ActorId{i}, name, alike ? absent : Resources::from_amounts({{"absent", static_cast<double>(i)}}).value()}};
    gang.order = i;
    put(TableName::kGangs, i, gang);
    actors::ActorRow actor;
    actor.id = ActorId{i};
    actor.class_name = name;
    actor.job = gang.spec.job;
    actor.gang = gang.spec.id;
    actor.attributes = {{"rows", std::string(i % 1000 == 0 ? 60'000 : 5, '9')}};
    if (i % 2 == 0) {
      actor.cause = unavailable(std::string(2000, '\xff')).with_hint(std::string(2000, 'h')).in(std::string(4000, 'c')).in("d");
    }
    put(TableName::kActors, i, actor);
  }
  return out;
}

}  // namespace shoal::scheduler
