// The CPUs of a pool's idle workers, which others may use until there is work again (PoolWorker::Cpus). Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "actors/session/tasks/pool_workers.h"

namespace shoal::actors {

class CpuLending {
 public:
  // Lends an idle worker's CPUs to others, and requests them back; the answer comes on the loop.
  struct Ways {
    std::function<void(ActorId)> lend;
    std::function<void(ActorId, std::function<void(bool)>)> resume;
  };

  // `changed` is called when a worker may take tasks that could not before. All outlive this.
  CpuLending(runtime::Clock& clock, const TaskPoolOptions& options, PoolWorkers& workers, std::function<void()> changed)
      : clock_(clock), options_(options), workers_(workers), changed_(std::move(changed)) {}
  ~CpuLending() { *alive_ = false; }
  // Ends the timers, since their loop may end before this.
  void close();
  // CPUs are lent from now on.
  void begin(Ways ways) { ways_ = std::move(ways); }

  // A worker has no tasks. Its CPUs are lent after a while.
  void lend_soon() { lend_later(options_.lend_after); }
  // Requests its CPUs back.
  void resume(ActorId id, PoolWorker& worker);
  // Workers whose requests are unanswered.
  std::size_t num_asked() const;
  // Workers with lent CPUs that may get them back soon.
  std::size_t num_resumable() const;
  // Others have had the CPUs of all workers for long.
  bool all_out() const;

 private:
  bool is_out(const PoolWorker& worker) const {
    return worker.cpus != PoolWorker::Cpus::kHeld && worker.pause >= options_.longest_resume_pause;
  }
  void resumed(ActorId id, bool has);
  void resume_later();
  void lend_later(runtime::Duration delay);
  void lend_idle();

  runtime::Clock& clock_;
  const TaskPoolOptions& options_;
  PoolWorkers& workers_;
  const std::function<void()> changed_;
  Ways ways_;
  runtime::Timer lend_timer_, resume_timer_;
  bool lends_later_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
