#include "scheduler/head/watchers.h"

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/node_messages.h"

#include <utility>

namespace shoal::scheduler {

using actors::Method;
using actors::to_bytes;

void Watchers::changed(const actors::ActorRow& row) {
  send(actors_, row.id, Method::kActorUpdate, to_bytes(row));
  if (row.state == actors::ActorState::kDead) actors_.erase(row.id);
}

void Watchers::changed(const actors::JobRow& row) {
  send(jobs_, row.id, Method::kJobUpdate, to_bytes(row));
  if (row.ended_unix_ms != 0) forget(row.id);
}

void Watchers::changed(const actors::GroupRow& row) {
  send(groups_, row.id, Method::kGroupUpdate, to_bytes(row));
  if (row.state == actors::GroupState::kRemoved) groups_.erase(row.id);
}

void Watchers::gone(NodeId node, const Error& cause) {
  const auto watchers = nodes_.extract(node);
  if (!watchers.empty()) send(watchers.mapped(), Method::kNodeGone, to_bytes(actors::NodeGone{node, cause}));
}

void Watchers::starts_on(JobId job, NodeId node, const actors::NodeRow* row) {
  const auto watchers = jobs_.find(job);
  if (watchers == jobs_.end() || !job_nodes_[job].insert(node).second || row == nullptr) return;
  for (const std::uint64_t client : watchers->second) is_on(*row, client);
}

void Watchers::is_on(const actors::NodeRow& row, std::uint64_t client) const {
  actors::ListReply reply;
  reply.nodes.push_back(row);
  send_(client, Method::kJobOnNode, to_bytes(reply));
}

void Watchers::warn(JobId job, const std::string& text) const { send(jobs_, job, Method::kWarning, to_bytes(actors::Warning{text})); }

void Watchers::forget(JobId job) {
  jobs_.erase(job);
  job_nodes_.erase(job);
}

void Watchers::closed(std::uint64_t client) {
  for (auto& [actor, clients] : actors_) clients.erase(client);
  for (auto& [job, clients] : jobs_) clients.erase(client);
  for (auto& [group, clients] : groups_) clients.erase(client);
  for (auto& [node, clients] : nodes_) clients.erase(client);
}

}  // namespace shoal::scheduler
