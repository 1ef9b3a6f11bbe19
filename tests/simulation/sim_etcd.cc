#include "tests/simulation/sim_etcd.h"

namespace shoal::simulation {

using namespace std::chrono_literals;
using runtime::between;
using runtime::happens;

namespace {
constexpr runtime::Duration kGiveUp = 2s;
}

void SimEtcd::after(runtime::Duration delay, std::function<void()> fn) {
  const std::uint64_t number = next_++;
  under_way_[number] = world_.clock().after(delay, [this, number, fn = std::move(fn)] {
    const auto done = under_way_.extract(number);
    fn();
  });
}

bool SimEtcd::lost(const std::string& host) { return cut_.contains(host) || happens(world_.random(), lost_per_mille_); }

void SimEtcd::ask(const std::string& host, std::function<void()> at_server, std::function<void(bool)> over) {
  const auto delay = [this] { return between(world_.random(), 100us, happens(world_.random(), slow_per_mille_) ? 800ms : 3ms); };
  if (lost(host)) return after(kGiveUp, [over = std::move(over)] { over(false); });
  after(delay(), [this, host, delay, at_server = std::move(at_server), over = std::move(over)] {
    at_server();
    if (lost(host)) return after(kGiveUp, [over] { over(false); });
    after(delay(), [over] { over(true); });
  });
}

void SimEtcd::lead(const std::string& host, pid_t who, std::uint64_t term, std::function<void(std::optional<std::uint64_t>)> answered) {
  auto reply = std::make_shared<std::uint64_t>(0);
  ask(
      host,
      [this, who, term, reply] {
        const auto now = world_.clock().now();
        const bool free = now >= until_;
        if (free && term != 0) return;  // the lease of this head has run out: it never leads again
        if (!free && leader_ != who) return;
        if (free) {
          leader_ = who;
          ++term_;
        }
        until_ = now + kLease;
        *reply = term_;
      },
      [reply, answered = std::move(answered)](bool received) { answered(received ? std::optional(*reply) : std::nullopt); });
}

void SimEtcd::commit(const std::string& host, std::uint64_t term, std::vector<scheduler::Record> records,
                     std::function<void(std::optional<bool>)> answered) {
  auto reply = std::make_shared<bool>(false);
  auto shared = std::make_shared<std::vector<scheduler::Record>>(std::move(records));
  ask(
      host,
      [this, term, shared, reply] {
        if (term != term_ || world_.clock().now() >= until_) return;
        disk_->commit(*shared, [](Result<void>) {});
        for (const auto& r : *shared) kept_.insert({r.table, r.id});
        *reply = true;
      },
      [reply, answered = std::move(answered)](bool received) { answered(received ? std::optional(*reply) : std::nullopt); });
}

}  // namespace shoal::simulation
