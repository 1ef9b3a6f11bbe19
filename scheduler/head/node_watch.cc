#include "scheduler/head/node_watch.h"

#include <algorithm>
#include <utility>

namespace shoal::scheduler {

namespace {
constexpr std::size_t kMaxProbes = 16;  // number of nodes whose ports are checked at once
}  // namespace

NodeWatch::NodeWatch(runtime::Network& network, const ClusterState& state, Options options, Events events)
    : network_(network), state_(state), options_(std::move(options)), events_(std::move(events)) {}

void NodeWatch::watch(NodeId id, pid_t pid) {
  if (!options_.watch_process) return;
  processes_[id] = options_.watch_process(pid, [this, id] {
    const auto over = processes_.extract(id);
    events_.gone(id);
  });
}

// The node may have sent a pid of another pid namespace. So the head takes the pid that the kernel names as the listener on the node's unix
// socket.
void NodeWatch::watch_if_near(const actors::RegisterNode& node) {
  const auto endpoint = runtime::parse_endpoint(node.endpoint);
  if (!options_.watch_process || !endpoint) return;
  const bool near =
      endpoint->is_unix() || (endpoint->is_both() && std::any_of(options_.listen.begin(), options_.listen.end(),
                                                                 [&](const auto& own) { return own.host == endpoint->host; }));
  if (!near || processes_.contains(node.id)) return;
  network_.connect(*endpoint, runtime::Role::kClient, options_.probe_timeout,
                   [this, alive = alive_, id = node.id](Result<std::unique_ptr<runtime::Connection>> r) {
                     if (!*alive || !r || !(*r)->identity().local || (*r)->identity().pid <= 0) return;
                     const auto* row = state_.node(id);
                     if (row != nullptr && row->state != actors::NodeState::kDead) watch(id, (*r)->identity().pid);
                   });
}

// A node listens as long as its process lives, so a refused connection proves that the process has ended. A host that does not answer, or a
// process that gets no CPU, proves nothing: then missed heartbeats decide.
void NodeWatch::check() {
  for (auto it = missing_.begin(); it != missing_.end() && probed_.size() < kMaxProbes;) {
    const NodeId id = *it;
    const auto* row = state_.node(id);
    if (row == nullptr || row->state == actors::NodeState::kDead || events_.connected(id)) {
      it = missing_.erase(it);
      continue;
    }
    ++it;
    const auto endpoint = runtime::parse_endpoint(row->endpoint);
    // The path of a unix socket means nothing on another host.
    if (!endpoint || endpoint->is_unix() || !probed_.insert(id).second) continue;
    network_.connect(*endpoint, runtime::Role::kClient, options_.probe_timeout,
                     [this, alive = alive_, id, at = row->endpoint](Result<std::unique_ptr<runtime::Connection>> r) {
                       if (!*alive) return;
                       probed_.erase(id);
                       const auto* known = state_.node(id);
                       if (r || r.error().reason() != "Refused" || known == nullptr || known->endpoint != at) return;
                       if (!events_.connected(id)) events_.gone(id);
                     });
  }
}

}  // namespace shoal::scheduler
