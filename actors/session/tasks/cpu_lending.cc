#include "actors/session/tasks/cpu_lending.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shoal::actors {

using Cpus = PoolWorker::Cpus;
using State = PoolWorker::State;

void CpuLending::close() {
  *alive_ = false;
  lend_timer_ = {};
  resume_timer_ = {};
}

std::size_t CpuLending::num_requested() const {
  return static_cast<std::size_t>(
      std::count_if(workers_.all().begin(), workers_.all().end(), [](const auto& w) { return w.second.cpus == Cpus::kRequested; }));
}

void CpuLending::resume(ActorId id, PoolWorker& worker) {
  worker.cpus = Cpus::kRequested;
  requests_.resume(id, [this, alive = alive_, id](bool has) {
    if (*alive) resumed(id, has);
  });
}

void CpuLending::resumed(ActorId id, bool has) {
  PoolWorker* const w = workers_.find(id);
  if (w == nullptr) return;
  w->cpus = has ? Cpus::kHeld : Cpus::kRefused;
  if (has) {
    w->pause = {};
    w->idle_since = clock_.now();
    lend_soon();
  } else {
    w->pause = std::clamp(2 * w->pause, options_.resume_pause, options_.longest_resume_pause);
    w->request_after = clock_.now() + w->pause;
    resume_later();
  }
  changed_();
}

void CpuLending::resume_later() {
  const auto now = clock_.now();
  std::optional<runtime::TimePoint> next;
  for (const auto& [id, w] : workers_.all()) {
    if (w.cpus == Cpus::kRefused && w.request_after > now) next = std::min(next.value_or(w.request_after), w.request_after);
  }
  if (!next) return;
  resume_timer_ = clock_.after(*next - now, [this, alive = alive_] {
    if (!*alive) return;
    changed_();
    if (*alive) resume_later();
  });
}

void CpuLending::lend_later(runtime::Duration delay) {
  if (!requests_.lend || std::exchange(lends_later_, true)) return;
  lend_timer_ = clock_.after(delay, [this, alive = alive_] {
    if (*alive) lend_idle();
  });
}

void CpuLending::lend_idle() {
  lends_later_ = false;
  std::optional<runtime::Duration> next;
  for (auto& [id, w] : workers_.all()) {
    if (w.state != State::kReady || w.cpus != Cpus::kHeld || !w.in_flight.empty()) continue;
    const auto left = w.idle_since + options_.lend_after - clock_.now();
    if (left > runtime::Duration::zero()) {
      next = std::min(next.value_or(left), left);
      continue;
    }
    w.cpus = Cpus::kLent;
    requests_.lend(id);
  }
  if (next) lend_later(*next);
}

std::size_t CpuLending::num_resumable() const {
  return static_cast<std::size_t>(std::count_if(workers_.all().begin(), workers_.all().end(), [&](const auto& entry) {
    const PoolWorker& w = entry.second;
    return w.cpus != Cpus::kHeld && w.state == State::kReady && !is_out(w);
  }));
}

bool CpuLending::all_out() const {
  return std::all_of(workers_.all().begin(), workers_.all().end(), [&](const auto& w) { return is_out(w.second); });
}

}  // namespace shoal::actors
