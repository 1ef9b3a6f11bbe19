#include "runtime/sim/sim_network.h"

#include <cerrno>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/sim/sim_clock.h"
#include "runtime/sim/sim_link.h"
#include "runtime/sim/trace.h"

namespace shoal::runtime {

namespace {

class SimListener final : public Listener {
 public:
  explicit SimListener(std::shared_ptr<sim::Listening> listening) : listening_(std::move(listening)) {}
  const Endpoint& endpoint() const override { return listening_->endpoint; }

 private:
  const std::shared_ptr<sim::Listening> listening_;
};

}  // namespace

SimFabric::SimFabric(SimClock& clock, Random& random, Trace& trace, const Token& token, SimNetworkOptions options)
    : clock_(clock), random_(random), trace_(trace), token_(token), options_(options) {}

SimFabric::~SimFabric() { SHOAL_CHECK(processes_.empty(), "a fabric is destroyed while processes are attached"); }

std::unique_ptr<SimNetwork> SimFabric::attach(const std::string& host, pid_t pid) { return attach(host, pid, token_); }

std::unique_ptr<SimNetwork> SimFabric::attach(const std::string& host, pid_t pid, const Token& token) {
  down_.erase(host);
  const std::uint64_t id = next_++;
  const auto process = std::make_shared<sim::Process>(sim::Process{id, host, pid, token});
  processes_.emplace(id, process);
  return std::unique_ptr<SimNetwork>(new SimNetwork(*this, process));
}

// ---- faults -------------------------------------------------------------------------------------------------------------------------

void SimFabric::cut(const std::string& from, const std::string& to) {
  SHOAL_CHECK(from != to, "a host cannot be cut off from itself");
  cuts_.insert({from, to});
}

void SimFabric::partition(const std::string& a, const std::string& b) {
  cut(a, b);
  cut(b, a);
}

void SimFabric::heal(const std::string& a, const std::string& b) {
  cuts_.erase({a, b});
  cuts_.erase({b, a});
  resume();
}

void SimFabric::heal() {
  cuts_.clear();
  resume();
}

void SimFabric::resume() {
  for (auto& [id, link] : links_) link->resume();
}

std::size_t SimFabric::disconnect(const std::string& a, const std::string& b) {
  std::size_t count = 0;
  for (auto& [id, link] : links_) {
    if (!link->joins(a, b)) continue;
    link->disconnect();
    ++count;
  }
  return count;
}

bool SimFabric::disconnect_any() {
  std::vector<sim::Link*> candidates;
  for (auto& [id, link] : links_) {
    if (link->established() && !link->within_a_host()) candidates.push_back(link.get());
  }
  if (candidates.empty()) return false;
  candidates[random_.below(candidates.size())]->disconnect();
  return true;
}

void SimFabric::crash(const std::string& host) {
  down_.insert(host);
  std::vector<std::shared_ptr<sim::Process>> gone;
  for (auto& [id, process] : processes_) {
    if (process->host == host) gone.push_back(process);
  }
  for (auto& process : gone) crash(*process, true);
}

void SimFabric::crash(sim::Process& process, bool abrupt) {
  if (!std::exchange(process.alive, false)) return;
  processes_.erase(process.id);
  for (const auto& link : links_of(process)) link->process_crashed(process, abrupt);
}

void SimFabric::leave(sim::Process& process) {
  if (!std::exchange(process.alive, false)) return;
  processes_.erase(process.id);
  for (const auto& link : links_of(process)) link->process_left(process);
}

// Returns owning pointers, because a link that ends leaves the map.
std::vector<std::shared_ptr<sim::Link>> SimFabric::links_of(const sim::Process& process) const {
  std::vector<std::shared_ptr<sim::Link>> out;
  for (const std::uint64_t id : process.links) {
    if (const auto it = links_.find(id); it != links_.end()) out.push_back(it->second);
  }
  return out;
}

// ---- operations of processes --------------------------------------------------------------------------------------------------------

Duration SimFabric::delay(const std::string& from, const std::string& to) {
  const SimDelays& d = options_.delays;
  if (from == to) return between(random_, d.least / 10, d.most / 10);
  return happens(random_, d.slow_per_mille) ? between(random_, d.most, d.slow) : between(random_, d.least, d.most);
}

std::shared_ptr<sim::Listening> SimFabric::listening(const std::string& caller_host, const Endpoint& at) const {
  const auto it = listening_.find({at.is_unix() ? caller_host : at.host, at.to_string()});
  auto found = it == listening_.end() ? nullptr : it->second.lock();
  return found && found->process->alive ? found : nullptr;
}

Result<std::unique_ptr<Listener>> SimFabric::listen(const std::shared_ptr<sim::Process>& process, const Endpoint& endpoint,
                                                    Network::Accepted accepted) {
  if (!process->alive) return fail(internal("a crashed process listens"));
  if (listening_.size() >= sweep_at_) {
    std::erase_if(listening_, [](const auto& l) { return l.second.expired(); });
    sweep_at_ = 2 * listening_.size() + 16;
  }
  Endpoint actual = endpoint;
  if (!endpoint.is_unix() && endpoint.host != process->host) {
    return fail(from_errno(EADDRNOTAVAIL, "listen on " + endpoint.to_string()));
  }
  if (!endpoint.is_unix() && endpoint.port == 0) actual.port = next_port_++;
  if (listening(process->host, actual)) return fail(from_errno(EADDRINUSE, "listen on " + actual.to_string()));
  auto listener = std::make_shared<sim::Listening>(sim::Listening{process, actual, std::move(accepted)});
  listening_[{process->host, actual.to_string()}] = listener;
  if (actual.is_both()) {
    for (const auto& way : {actual.on_its_host(), actual.from_elsewhere()}) listening_[{process->host, way.to_string()}] = listener;
  }
  return std::make_unique<SimListener>(std::move(listener));
}

void SimFabric::connect(const std::shared_ptr<sim::Process>& process, const Endpoint& endpoint, Role role, Duration timeout,
                        Network::Connected connected) {
  if (!process->alive) return;
  const std::uint64_t id = next_++;
  const Endpoint way = !endpoint.is_both() ? endpoint : endpoint.host == process->host ? endpoint.on_its_host() : endpoint.from_elsewhere();
  const auto link = std::make_shared<sim::Link>(*this, id, process, way, role, std::move(connected));
  links_.emplace(id, link);
  link->open(timeout);
}

SimNetwork::~SimNetwork() { fabric_.leave(*process_); }

Result<std::unique_ptr<Listener>> SimNetwork::listen(const Endpoint& endpoint, Accepted accepted) {
  return fabric_.listen(process_, endpoint, std::move(accepted));
}

void SimNetwork::connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) {
  fabric_.connect(process_, endpoint, role, timeout, std::move(connected));
}

void SimNetwork::crash() { fabric_.crash(*process_, false); }

const std::string& SimNetwork::host() const { return process_->host; }
pid_t SimNetwork::pid() const { return process_->pid; }

}  // namespace shoal::runtime
