// Lends the CPUs of a pool's idle workers to other processes until there is work again (PoolWorker::Cpus). Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "actors/session/tasks/pool_workers.h"

namespace shoal::actors {

class CpuLending {
 public:
  // Functions of the owner that lend an idle worker's CPUs, and request them back. The answer to a request comes on the loop.
  struct Requests {
    std::function<void(ActorId)> lend;
    std::function<void(ActorId, std::function<void(bool)>)> resume;
  };

  // `changed` is called when a worker may take tasks that it could not take before. All arguments outlive this object.
  CpuLending(runtime::Clock& clock, const TaskPoolOptions& options, PoolWorkers& workers, std::function<void()> changed)
      : clock_(clock), options_(options), workers_(workers), changed_(std::move(changed)) {}
  ~CpuLending() { *alive_ = false; }
  // Ends the timers, since their loop may end before this object.
  void close();
  // Lends the CPUs of idle workers from now on.
  void begin(Requests requests) { requests_ = std::move(requests); }

  // To be called when a worker has no tasks: its CPUs are lent after lend_after, if it is still idle.
  void lend_soon() { lend_later(options_.lend_after); }
  // Requests the lent CPUs of a worker back.
  void resume(ActorId id, PoolWorker& worker);
  // Number of workers whose request for their CPUs has no answer yet.
  std::size_t num_requested() const;
  // Number of ready workers whose CPUs are lent or requested back, but for those that were refused often (is_out).
  std::size_t num_resumable() const;
  // True if every worker's CPUs are lent, and so many requests for them were refused that the pause between requests is the longest.
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
  Requests requests_;
  runtime::Timer lend_timer_, resume_timer_;
  bool lends_later_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
