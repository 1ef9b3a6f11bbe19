#include "tests/simulation/sim_cluster.h"

#include <fmt/format.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>

#include <deque>
#include <set>

#include "runtime/core/check.h"

namespace shoal::simulation {

using namespace std::chrono_literals;
using actors::WorkerState;
using runtime::Endpoint;
using What = actors::ListRequest::What;

namespace {

Endpoint head_at(std::size_t i) { return Endpoint::tcp(i == 0 ? "head" : "head" + std::to_string(i), 6400); }

}  // namespace

// Keeps the last lines, with the world's time. Counts errors, each of which is a bug.
class SimCluster::LogSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  LogSink(runtime::Clock& clock, std::size_t kept) : clock_(clock), kept_(kept) {}
  std::deque<std::string> lines;
  std::size_t num_errors = 0;

 private:
  void sink_it_(const spdlog::details::log_msg& m) override {
    const double seconds = std::chrono::duration<double>(clock_.now().time_since_epoch()).count();
    lines.push_back(fmt::format("{:.6f} {} {}", seconds, std::string_view(m.logger_name.data(), m.logger_name.size()),
                                std::string_view(m.payload.data(), m.payload.size())));
    if (lines.size() > kept_) lines.pop_front();
    num_errors += m.level >= spdlog::level::err;
  }
  void flush_() override {}
  runtime::Clock& clock_;
  const std::size_t kept_;
};

SimCluster::SimCluster(const Options& options)
    : options_(options),
      world_({options.seed, options.network}),
      sink_(std::make_shared<LogSink>(world_.clock(), options.kept_log_lines)),
      several_(options.num_heads > 1 ? options.num_heads : 0),
      hosts_(options.num_nodes) {
  for (std::size_t i = 0; i < options.num_heads; ++i) boot_head();
  SHOAL_CHECK(run_until([this] { return head_runs(); }), "no head leads");
  for (std::size_t i = 0; i < hosts_.size(); ++i) boot_node(i);
  const auto joined = [this] { return state().alive_nodes().size() == hosts_.size(); };
  for (int i = 0; i < 30'000 && !joined(); ++i) run_for(1ms);  // checked once per ms, because a large cluster has very many events
  SHOAL_CHECK(joined(), "the nodes do not join");
}

SimCluster::~SimCluster() {
  driver_.reset();
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (node_runs(i)) crash_node(i);
  }
  several_.clear();
  if (head_) crash_head();
}

const scheduler::Head* SimCluster::leading() const {
  if (several_.empty()) return head_.get();
  for (const auto& h : several_) {
    if (h && h->head() && h->epoch() == etcd_.epoch()) return h->head();
  }
  return nullptr;
}

bool SimCluster::leads(const std::string& host) const {
  return std::any_of(several_.begin(), several_.end(),
                     [&](const auto& h) { return h && h->host() == host && h->head() != nullptr && h->head() == leading(); });
}

std::vector<std::string> SimCluster::hosts() const {
  std::vector<std::string> out = {"driver"};
  for (const auto& h : heads()) out.push_back(h.host);
  for (std::size_t i = 0; i < hosts_.size(); ++i) out.push_back("n" + std::to_string(i));
  return out;
}

std::vector<Endpoint> SimCluster::heads() const {
  std::vector<Endpoint> out;
  for (std::size_t i = 0; i < options_.num_heads; ++i) out.push_back(head_at(i));
  return out;
}

void SimCluster::boot_head() {
  for (std::size_t i = 0; i < several_.size(); ++i) {
    if (several_[i]) continue;
    std::vector<std::string> heads = {head_at(i).to_string()};
    for (std::size_t k = 0; k < several_.size(); ++k) {
      if (k != i) heads.push_back(head_at(k).to_string());
    }
    const std::string name = head_at(i).host;
    world_.clock_of(name).go_on();
    several_[i] = std::make_unique<SimHead>(world_, processes_, etcd_, head_at(i), std::move(heads), make_log(name));
    return;
  }
  if (!several_.empty()) return;
  world_.clock_of("head").go_on();
  head_network_ = world_.fabric().attach("head", processes_.start());
  scheduler::Head::Options o;
  o.listen = {head_at(0)};
  o.session = "simulated";
  o.pid = head_network_->pid();
  o.heartbeat_ms = options_.heartbeat_ms;
  runtime::Clock* clock = &world_.clock_of("head");
  runtime::Network* network = head_network_.get();
  if (options_.head_meter != nullptr) {
    metered_clock_ = metered(*options_.head_meter, *clock);
    metered_network_ = metered(*options_.head_meter, *network);
    clock = metered_clock_.get();
    network = metered_network_.get();
  }
  head_ = std::make_unique<scheduler::Head>(*clock, world_.random(), *network, store_, make_log("head"), o);
  SHOAL_CHECK(head_->start(), "the head does not start");
}

void SimCluster::crash_head(std::size_t i) {
  if (!several_.empty()) return several_.at(i).reset();
  head_network_->crash();
  processes_.ended(head_network_->pid());
  store_.crash();
  head_.reset();
  head_network_.reset();
}

runtime::Log SimCluster::make_log(const std::string& name) const {
  auto log = std::make_shared<spdlog::logger>(name, sink_);
  log->set_level(spdlog::level::debug);
  return log;
}

void SimCluster::boot_node(std::size_t i) {
  Host& h = hosts_.at(i);
  const std::string name = "n" + std::to_string(i);
  const pid_t pid = processes_.start();
  world_.clock_of(name).go_on();
  h.network = world_.fabric().attach(name, pid);
  h.launcher = std::make_unique<SimLauncher>(world_, processes_, name);
  h.launcher->set_faults(launch_faults_);
  scheduler::Node::Options o;
  o.resources = actors::Resources::of({{"CPU", options_.cpus}}).value();
  o.host = name;
  o.pid = pid;
  o.heads = heads();
  o.listen = {"node-" + std::to_string(pid), name, 0};
  o.memory.spare_bytes = 0;
  h.node = std::make_unique<scheduler::Node>(world_.clock_of(name), world_.random(), *h.network, *h.launcher, make_log(name), o);
  SHOAL_CHECK(h.node->start(), "a node does not start");
  h.endpoint = h.node->endpoint();
}

void SimCluster::crash_node(std::size_t i) {
  Host& h = hosts_.at(i);
  world_.fabric().crash("n" + std::to_string(i));
  node_is_gone(h);
}

void SimCluster::kill_node(std::size_t i) {
  hosts_.at(i).network->crash();
  node_is_gone(hosts_.at(i));
}

void SimCluster::node_is_gone(Host& h) {
  if (driver_ && driver_->host() == h.network->host()) driver_.reset();
  processes_.ended(h.network->pid());
  h.node.reset();
  h.launcher.reset();
  h.network.reset();
}

void SimCluster::set_launch_faults(const SimLauncher::Faults& faults) {
  launch_faults_ = faults;
  for (auto& h : hosts_) {
    if (h.launcher) h.launcher->set_faults(faults);
  }
}

SimDriver& SimCluster::put_driver(const std::string& host, std::optional<Endpoint> node) {
  driver_.reset();
  world_.clock_of(host).go_on();
  driver_ = std::make_unique<SimDriver>(world_, processes_, host, heads(), std::move(node));
  return *driver_;
}

SimDriver& SimCluster::new_driver() { return put_driver("driver", {}); }

SimDriver& SimCluster::new_driver_on_node(std::size_t i) { return put_driver("n" + std::to_string(i), hosts_.at(i).endpoint); }

void SimCluster::driver_leaves() {
  driver_->leave();
  driver_.reset();  // frames that it sent still arrive
}

bool SimCluster::crash_worker_of(ActorId actor) {
  const auto* row = head_runs() ? state().actor(actor) : nullptr;
  if (row == nullptr) return false;
  for (auto& h : hosts_) {
    if (h.launcher && h.launcher->crash(row->worker)) return true;
  }
  return false;
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
      make_log("driver")->warn("actor={} does not answer: {}", to_string(actors[i]), answers[i].peek().error().message());
      return false;
    }
    if (text_of(*answers[i].peek()) != to_string(actors[i])) return false;
  }
  return true;
}

std::size_t SimCluster::num_workers_running() const {
  std::size_t count = 0;
  for (const auto& h : hosts_) count += h.launcher ? h.launcher->running().size() : 0;
  return count;
}

std::string SimCluster::disagreement() const {
  std::map<NodeId, const Host*> alive;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!node_runs(i)) continue;
    alive[node_id(i)] = &hosts_[i];
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
    const bool attached = driver_ && driver_->worker() == w.id;  // the driver's own process
    if (w.state != WorkerState::kExited && !attached) workers[w.node].insert(w.id);
  }
  for (const auto& [id, host] : alive) {
    if (!known.contains(id)) return fmt::format("node {} is unknown to the head", to_string(id));
    std::set<WorkerId> running;
    for (const WorkerId w : host->launcher->running()) running.insert(w);
    const auto& believed = workers[id];
    for (const WorkerId w : running) {
      if (!believed.contains(w)) return fmt::format("worker {} runs on {}, unknown to the head", to_string(w), host->network->host());
    }
    for (const WorkerId w : believed) {
      if (!running.contains(w)) return fmt::format("worker {} is gone from {}, alive to the head", to_string(w), host->network->host());
    }
  }
  return {};
}

std::string SimCluster::not_kept() const {
  for (const auto& host : hosts_) {
    if (!host.launcher) continue;
    for (const WorkerId w : host.launcher->running()) {
      if (!etcd_.kept(scheduler::TableName::kWorkers, w.value)) return fmt::format("worker {} runs, and was never kept", to_string(w));
    }
  }
  return {};
}

bool SimCluster::store_agrees() const {
  const auto text = [](const std::vector<scheduler::Record>& records) {
    std::set<std::string> out;
    for (const auto& r : records) out.insert(fmt::format("{} {} {}", to_string(r.table), r.id, r.bytes.view()));
    return out;
  };
  return head_runs() && text(state().all_records()) == text(etcd_.load().value());
}

std::size_t SimCluster::num_logged_errors() const { return sink_->num_errors; }

std::string SimCluster::log() const {
  std::string out;
  for (const auto& line : sink_->lines) out += line + "\n";
  return out;
}

}  // namespace shoal::simulation
