#include "tests/simulation/sim_heads.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace shoal::simulation {

using runtime::Endpoint;

namespace {

Endpoint head_at(std::size_t i) { return Endpoint::tcp(i == 0 ? "head" : "head" + std::to_string(i), 6400); }

}  // namespace

SimHeads::SimHeads(runtime::SimWorld& world, ProcessTable& processes, const SimLog& log, const Options& options)
    : options_(options),
      world_(world),
      processes_(processes),
      log_(log),
      store_(world),
      etcd_(world),
      several_(options.num > 1 ? options.num : 0) {}

SimHeads::~SimHeads() {
  several_.clear();
  if (head_) crash();
}

const scheduler::Head* SimHeads::leader() const {
  if (several_.empty()) return head_.get();
  for (const auto& h : several_) {
    if (h && h->head() && h->term() == etcd_.term()) return h->head();
  }
  return nullptr;
}

bool SimHeads::leads(const std::string& host) const {
  return std::any_of(several_.begin(), several_.end(),
                     [&](const auto& h) { return h && h->host() == host && h->head() != nullptr && h->head() == leader(); });
}

std::vector<Endpoint> SimHeads::endpoints() const {
  std::vector<Endpoint> out;
  for (std::size_t i = 0; i < options_.num; ++i) out.push_back(head_at(i));
  return out;
}

void SimHeads::boot() {
  if (!several_.empty()) return boot_one_of_several();
  world_.clock_of("head").go_on();
  network_ = world_.fabric().attach("head", processes_.start());
  scheduler::Head::Options o;
  o.listen = {head_at(0)};
  o.session = "simulated";
  o.pid = network_->pid();
  o.heartbeat_ms = options_.heartbeat_ms;
  runtime::Clock* clock = &world_.clock_of("head");
  runtime::Network* network = network_.get();
  if (options_.meter != nullptr) {
    metered_clock_ = metered(*options_.meter, *clock);
    metered_network_ = metered(*options_.meter, *network);
    clock = metered_clock_.get();
    network = metered_network_.get();
  }
  head_ = std::make_unique<scheduler::Head>(*clock, world_.random(), *network, store_, log_.make("head"), o);
  SHOAL_CHECK(head_->start(), "the head does not start");
}

void SimHeads::boot_one_of_several() {
  const auto down = std::find(several_.begin(), several_.end(), nullptr);
  if (down == several_.end()) return;
  const Endpoint at = head_at(static_cast<std::size_t>(down - several_.begin()));
  std::vector<std::string> heads = {at.to_string()};
  for (const Endpoint& other : endpoints()) {
    if (other != at) heads.push_back(other.to_string());
  }
  world_.clock_of(at.host).go_on();
  *down = std::make_unique<SimHead>(world_, processes_, etcd_, at, std::move(heads), log_.make(at.host));
}

void SimHeads::crash(std::size_t i) {
  if (!several_.empty()) return several_.at(i).reset();
  network_->crash();
  processes_.ended(network_->pid());
  store_.crash();
  head_.reset();
  network_.reset();
}

}  // namespace shoal::simulation
