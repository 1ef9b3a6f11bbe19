// The clients that watch actors, jobs, groups and nodes. A client gets each later change of a row that it watches, until the last one.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/wire/method.h"
#include "runtime/core/bytes.h"

namespace shoal::scheduler {

class Watchers {
 public:
  // Sends a notice to a client. The notice is flushed later, since an answer to the same client often follows at once and shares the write.
  using Send = std::function<void(std::uint64_t client, actors::Method method, Bytes body)>;

  explicit Watchers(Send send) : send_(std::move(send)) {}

  void watch(ActorId actor, std::uint64_t client) { actors_[actor].insert(client); }
  void watch(JobId job, std::uint64_t client) { jobs_[job].insert(client); }
  void watch(GroupId group, std::uint64_t client) { groups_[group].insert(client); }
  void watch(NodeId node, std::uint64_t client) { nodes_[node].insert(client); }

  void changed(const actors::ActorRow& row);
  void changed(const actors::JobRow& row);
  void changed(const actors::GroupRow& row);
  void gone(NodeId node, const Error& cause);
  // To be called when a worker of the job starts on this node. If it is the job's first one there, sends the node's row to the clients that
  // watch the job. `row`: null if the head has none.
  void starts_on(JobId job, NodeId node, const actors::NodeRow* row);
  // Sends `client`, which has begun to watch a job, the row of a node on which that job has, or had, workers.
  void is_on(const actors::NodeRow& row, std::uint64_t client) const;
  void warn(JobId job, const std::string& text) const;

  void forget(JobId job);
  void closed(std::uint64_t client);

 private:
  using Clients = std::set<std::uint64_t>;
  template <class Id>
  void send(const std::map<Id, Clients>& watchers, Id id, actors::Method method, const Bytes& body) const {
    if (const auto it = watchers.find(id); it != watchers.end()) send(it->second, method, body);
  }
  void send(const Clients& clients, actors::Method method, const Bytes& body) const {
    for (const std::uint64_t client : clients) send_(client, method, body.clone());
  }

  const Send send_;
  std::map<ActorId, Clients> actors_;
  std::map<JobId, Clients> jobs_;
  std::map<JobId, std::set<NodeId>> job_nodes_;  // nodes that were sent to a job's watchers, until the job ends
  std::map<GroupId, Clients> groups_;
  std::map<NodeId, Clients> nodes_;
};

}  // namespace shoal::scheduler
