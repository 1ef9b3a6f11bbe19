// A store that several heads share, on a host of its own: rows, and the lease of the leader. Requests and answers are delayed or lost.
//
// Its guarantees are those of scheduler/etcd: a commit is atomic and succeeds only while its head leads. A commit without an answer was
// applied before it timed out, or never.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/sim/sim_world.h"
#include "scheduler/store/store.h"

namespace shoal::simulation {

class SimEtcd {
 public:
  static constexpr runtime::Duration kLease = std::chrono::seconds(3), kProof = std::chrono::milliseconds(2700);

  explicit SimEtcd(runtime::SimWorld& world) : world_(world) {}

  // ---- faults ----
  void cut(const std::string& host) { cut_.insert(host); }
  void heal() { cut_.clear(); }
  // Per mille of requests, and of answers, that are lost or slow.
  void set_faults(std::uint32_t lost_per_mille, std::uint32_t slow_per_mille) {
    lost_per_mille_ = lost_per_mille;
    slow_per_mille_ = slow_per_mille;
  }

  // ---- requests of heads; `answered` is called later, with nullopt when the outcome is unknown ----

  // `who` asks to lead, or to go on leading. Answers with its term (the number of its leadership), or 0 if it does not lead. `term`: the
  // asker's present one, 0 for a head that does not lead. A leader whose lease has run out gets 0 for ever.
  void lead(const std::string& host, pid_t who, std::uint64_t term, std::function<void(std::optional<std::uint64_t>)> answered);
  // Answers true if the rows were committed, false if this head does not lead.
  void commit(const std::string& host, std::uint64_t term, std::vector<scheduler::Record> records,
              std::function<void(std::optional<bool>)> answered);
  Result<std::vector<scheduler::Record>> load() const { return disk_->load(); }

  // ---- state ----
  std::uint64_t term() const { return term_; }
  // True if this row was ever committed.
  bool kept(scheduler::TableName table, std::uint64_t id) const { return kept_.contains({table, id}); }

 private:
  bool lost(const std::string& host);
  void ask(const std::string& host, std::function<void()> at_server, std::function<void(bool)> over);
  void after(runtime::Duration delay, std::function<void()> fn);

  runtime::SimWorld& world_;
  const std::unique_ptr<scheduler::Store> disk_ = scheduler::make_memory_store();
  std::set<std::string> cut_;
  std::uint32_t lost_per_mille_ = 0, slow_per_mille_ = 0;
  pid_t leader_ = 0;
  std::uint64_t term_ = 0;
  runtime::TimePoint until_{};
  std::set<std::pair<scheduler::TableName, std::uint64_t>> kept_;
  std::map<std::uint64_t, runtime::Timer> under_way_;
  std::uint64_t next_ = 1;
};

}  // namespace shoal::simulation
