#include "tests/simulation/sim_cluster.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "runtime/core/check.h"

namespace shoal::simulation {

using namespace std::chrono_literals;
using actors::WorkerState;
using runtime::Endpoint;
using What = actors::ListRequest::What;

SimCluster::SimCluster(const Options& o)
    : world_({o.seed, o.network}),
      log_(world_.clock(), o.kept_log_lines),
      heads_(world_, processes_, log_, {o.num_heads, o.heartbeat_ms, o.head_meter}),
      nodes_(world_, processes_, log_, {o.num_nodes, o.cpus, heads_.endpoints(), [this](const std::string& host) {
                                          if (driver_ && driver_->host() == host) driver_.reset();
                                        }}) {
  for (std::size_t i = 0; i < heads_.num(); ++i) heads_.boot();
  SHOAL_CHECK(run_until([this] { return head_runs(); }), "no head leads");
  for (std::size_t i = 0; i < nodes_.num(); ++i) nodes_.boot(i);
  const auto joined = [this] { return state().alive_nodes().size() == nodes_.num(); };
  for (int i = 0; i < 30'000 && !joined(); ++i) run_for(1ms);  // checked once per ms, because a large cluster has very many events
  SHOAL_CHECK(joined(), "the nodes do not join");
}

SimCluster::~SimCluster() { driver_.reset(); }

std::vector<std::string> SimCluster::hosts() const {
  std::vector<std::string> out = {"driver"};
  for (const auto& head : heads_.endpoints()) out.push_back(head.host);
  for (std::size_t i = 0; i < nodes_.num(); ++i) out.push_back(SimNodes::host(i));
  return out;
}

SimDriver& SimCluster::put_driver(const std::string& host, std::optional<Endpoint> node) {
  driver_.reset();
  world_.clock_of(host).go_on();
  driver_ = std::make_unique<SimDriver>(world_, processes_, host, heads_.endpoints(), std::move(node));
  return *driver_;
}

void SimCluster::driver_leaves() {
  driver_->leave();
  driver_.reset();  // the frames that the driver has sent still arrive
}

bool SimCluster::crash_worker_of(ActorId actor) {
  const auto* row = head_runs() ? state().actor(actor) : nullptr;
  return row != nullptr && nodes_.crash_worker(row->worker);
}

std::string SimCluster::host_of(ActorId actor) const {
  const auto* row = head_runs() ? state().actor(actor) : nullptr;
  if (row == nullptr || !row->node) return {};
  for (const auto& node : state().list({What::kNodes, {}}).nodes) {
    if (node.id == row->node) return node.host;
  }
  return {};
}

bool SimCluster::all_answer(const std::vector<ActorId>& actors) {
  std::vector<actors::ValueFuture> answers;
  for (const ActorId a : actors) answers.push_back(driver_->call(a, "echo", to_string(a)));
  const auto all_ready = [&] { return std::all_of(answers.begin(), answers.end(), [](const auto& f) { return f.ready(); }); };
  if (!run_until(all_ready)) return false;
  for (std::size_t i = 0; i < actors.size(); ++i) {
    if (!answers[i].peek()) {
      log_.make("driver")->warn("actor={} does not answer: {}", to_string(actors[i]), answers[i].peek().error().message());
      return false;
    }
    if (text_of(*answers[i].peek()) != to_string(actors[i])) return false;
  }
  return true;
}

std::string SimCluster::disagreement() const {
  std::map<NodeId, std::size_t> alive;
  for (std::size_t i = 0; i < nodes_.num(); ++i) {
    if (nodes_.runs(i)) alive[nodes_.id(i)] = i;
  }
  const auto all = [this](What what) {
    return actors::list_all({what, {}},
                            [this](const Bytes& request) -> Result<actors::ListReply> {
                              return state().list(actors::from_bytes<actors::ListRequest>(request).value());
                            })
        .value();
  };
  for (const auto& node : all(What::kNodes).nodes) {
    const bool runs = alive.contains(node.id);
    if ((node.state == actors::NodeState::kAlive) != runs) {
      return fmt::format("node {} on {} {}", to_string(node.id), node.host, runs ? "runs, given up" : "is alive to the head alone");
    }
  }
  const auto nodes = state().alive_nodes();
  const std::set<NodeId> known(nodes.begin(), nodes.end());
  std::map<NodeId, std::set<WorkerId>> workers;
  for (const auto& w : all(What::kWorkers).workers) {
    const bool attached = driver_ && driver_->worker() == w.id;  // this row is the driver itself, which no node started
    if (w.state != WorkerState::kExited && !attached) workers[w.node].insert(w.id);
  }
  for (const auto& [id, i] : alive) {
    if (!known.contains(id)) return fmt::format("node {} is unknown to the head", to_string(id));
    std::set<WorkerId> running;
    for (const WorkerId w : nodes_.launcher(i).running()) running.insert(w);
    const auto& believed = workers[id];
    for (const WorkerId w : running) {
      if (!believed.contains(w)) return fmt::format("worker {} runs on {}, unknown to the head", to_string(w), SimNodes::host(i));
    }
    for (const WorkerId w : believed) {
      if (!running.contains(w)) return fmt::format("worker {} is gone from {}, alive to the head", to_string(w), SimNodes::host(i));
    }
  }
  return {};
}

std::string SimCluster::not_kept() const {
  for (const WorkerId w : nodes_.workers()) {
    if (!heads_.etcd().kept(scheduler::TableName::kWorkers, w.value))
      return fmt::format("worker {} runs, and was never kept", to_string(w));
  }
  return {};
}

bool SimCluster::store_agrees() const {
  const auto text = [](const std::vector<scheduler::Record>& records) {
    std::set<std::string> out;
    for (const auto& r : records) out.insert(fmt::format("{} {} {}", to_string(r.table), r.id, r.bytes.view()));
    return out;
  };
  return head_runs() && text(state().all_records()) == text(heads_.etcd().load().value());
}

}  // namespace shoal::simulation
