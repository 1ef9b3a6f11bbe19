// A store that several heads share, on a host of its own: rows, and who leads. Requests and answers take their time, or are lost.
//
// It promises what scheduler/etcd promises on a real one: a commit is kept whole, only while its head leads, and one that was given up
// happened before it was, or never.
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
  // Of a thousand requests and of their answers, how many are lost, and how many are slow.
  void set_faults(std::uint32_t lost_per_mille, std::uint32_t slow_per_mille) {
    lost_per_mille_ = lost_per_mille;
    slow_per_mille_ = slow_per_mille;
  }

  // ---- what heads ask; `answered` comes later, with nothing when nobody knows what became of it ----
  // Its epoch if `who` leads from now on, or still; 0 if not. One that leads says which epoch it has.
  void lead(const std::string& host, pid_t who, std::uint64_t epoch, std::function<void(std::optional<std::uint64_t>)> answered);
  // Whether it is kept; false: another one leads, or nobody.
  void commit(const std::string& host, std::uint64_t epoch, std::vector<scheduler::Record> records,
              std::function<void(std::optional<bool>)> answered);
  Result<std::vector<scheduler::Record>> load() const { return disk_->load(); }

  // ---- what a test sees ----
  std::uint64_t epoch() const { return epoch_; }
  // It was once.
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
  std::uint64_t epoch_ = 0;
  runtime::TimePoint until_{};
  std::set<std::pair<scheduler::TableName, std::uint64_t>> kept_;
  std::map<std::uint64_t, runtime::Timer> under_way_;
  std::uint64_t next_ = 1;
};

}  // namespace shoal::simulation
