#include "tests/simulation/sim_nodes.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace shoal::simulation {

SimNodes::SimNodes(runtime::SimWorld& world, ProcessTable& processes, const SimLog& log, Options options)
    : world_(world), processes_(processes), log_(log), options_(std::move(options)), hosts_(options_.num) {}

SimNodes::~SimNodes() {
  for (std::size_t i = 0; i < num(); ++i) {
    if (runs(i)) crash(i);
  }
}

void SimNodes::boot(std::size_t i) {
  Host& h = hosts_.at(i);
  const std::string name = host(i);
  const pid_t pid = processes_.start();
  world_.clock_of(name).go_on();
  h.network = world_.fabric().attach(name, pid);
  h.launcher = std::make_unique<SimLauncher>(world_, processes_, name);
  h.launcher->set_faults(launch_faults_);
  scheduler::Node::Options o;
  o.resources = actors::Resources::from_amounts({{"CPU", options_.cpus}}).value();
  o.host = name;
  o.pid = pid;
  o.head.endpoints = options_.heads;
  o.listen = {"node-" + std::to_string(pid), name, 0};
  o.memory.spare_bytes = 0;
  h.node = std::make_unique<scheduler::Node>(world_.clock_of(name), world_.random(), *h.network, *h.launcher, log_.make(name), o);
  SHOAL_CHECK(h.node->start(), "a node does not start");
  h.endpoint = h.node->endpoint();
}

void SimNodes::crash(std::size_t i) {
  world_.fabric().crash(host(i));
  ended(hosts_.at(i));
}

void SimNodes::kill(std::size_t i) {
  hosts_.at(i).network->crash();
  ended(hosts_.at(i));
}

void SimNodes::ended(Host& h) {
  options_.on_end(h.network->host());
  processes_.ended(h.network->pid());
  h.node.reset();
  h.launcher.reset();
  h.network.reset();
}

bool SimNodes::crash_worker(WorkerId worker) {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& h) { return h.launcher && h.launcher->crash(worker); });
}

void SimNodes::set_launch_faults(const SimLauncher::Faults& faults) {
  launch_faults_ = faults;
  for (auto& h : hosts_) {
    if (h.launcher) h.launcher->set_faults(faults);
  }
}

std::vector<WorkerId> SimNodes::workers() const {
  std::vector<WorkerId> out;
  for (const auto& h : hosts_) {
    if (!h.launcher) continue;
    const auto running = h.launcher->running();
    out.insert(out.end(), running.begin(), running.end());
  }
  return out;
}

}  // namespace shoal::simulation
