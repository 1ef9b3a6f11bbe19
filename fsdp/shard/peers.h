// A model's other ranks as one rank sees them: their positions, their ends, and every wait for them.
//
// Each wait serves due reductions, detects dead peers at once, names the missing rank after `warn_after`, and fails after `timeout`. When
// all ranks wait and no wait can end, each of them fails. This rank's control words state its position, and its present wait. One thread at
// a time, except for mark_gone() and at().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/layout/hosts.h"
#include "fsdp/link/host_link.h"
#include "fsdp/plan/stepper.h"
#include "fsdp/protocol/control.h"
#include "fsdp/protocol/reducer.h"
#include "fsdp/unit/sharded_unit.h"
#include "runtime/core/owner_process.h"

namespace shoal::fsdp {

class Peers {
 public:
  struct Options {
    runtime::Duration warn_after = std::chrono::seconds(5);
    runtime::Duration timeout = std::chrono::seconds(600);
    int spins = 300;  // polls before a wait sleeps; 0 where ranks outnumber cores
    std::function<bool()> interrupted;
    std::function<void(const std::string&)> warn;
  };
  struct Waiting {
    std::string for_what;
    std::function<int()> missing;  // a rank that is missing, -1 when unknown
    bool for_link = false;         // true: for data on their way between hosts, so the wait can end even if all ranks wait
  };

  // All references outlive this object. Waits serve the due reductions of `reducer`. `stepper` gives messages the number of the step.
  // `link`: for ranks on several hosts, else null.
  Peers(Control& control, int rank, const Hosts& hosts, const Units& units, Reducer& reducer, const Stepper& stepper, HostLink* link,
        std::shared_ptr<runtime::Clock> clock, Options options);

  Result<void> wait(const std::function<bool()>& ready, const Waiting& waiting);
  // Serves a reduction, if one is due. Returns true after progress.
  Result<bool> serve();
  // Fails if a rank is gone without a call of leave(), and in a forked child.
  Result<void> check() const;
  // True in a child that was forked from the rank's process: it shares the rank's words, and is no rank.
  bool forked() const { return owner_.forked(); }
  // Fails in a forked child.
  Result<void> check_process() const;
  // Wakes all ranks that wait, also on other hosts. Call it after a store that another rank may wait for.
  void notify_all() {
    control_.membership_page().notify_all();
    if (link_ != nullptr) link_->update();
  }

  // Makes the waits of this host's ranks check again. Any thread.
  void wake() { control_.membership_page().notify_all(); }

  // Sets the predicate that can interrupt waits; a wait calls it several times per second. An empty one restores Options::interrupted.
  void interrupt_by(std::function<bool()> interrupted) { interrupt_by_ = std::move(interrupted); }
  // Calls `waits(true)` before a wait that does not end at once, and `waits(false)` after it, in the thread that waits.
  void observe_waits(std::function<void(bool)> waits) { waits_ = std::move(waits); }
  // `ended_steps` returns the number of steps in the run's record. While that is 0, messages number the model's own steps.
  void number_steps(std::function<std::uint64_t()> ended_steps) { ended_steps_ = std::move(ended_steps); }
  // Sets this rank's position, which is shown to ranks that wait for it.
  void at(Doing doing, std::size_t unit);
  // This rank's program no longer uses the model; it may end or continue. Ranks that still need an action of this rank fail; other ranks go
  // on.
  void leave();
  // Marks this rank as gone on the membership page, from any thread: pending and later calls on every rank fail with `cause`.
  void mark_gone(const std::string& cause) {
    control_.membership_page().mark_gone(static_cast<std::uint32_t>(rank_), cause);
    if (link_ != nullptr) link_->wake();
  }
  // How many steps of this model this rank has ended.
  std::uint32_t step() const { return static_cast<std::uint32_t>(stepper_.steps()); }
  // The number of this rank's current step in texts: from 1, or as the run's record counts.
  std::uint32_t step_number() const;

 private:
  // The state of one wait: its times, and all ranks' waits at its last check.
  struct Watch {
    const Waiting& waiting;
    const std::function<bool()>& ready;
    runtime::TimePoint began, check_at, warn_at;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> waits = {};  // by rank: number of its wait, and of its fruitless checks
    std::optional<runtime::TimePoint> left_since = {};                // since this time the awaited rank has been seen to have left
  };
  // Each of these functions fails if the wait cannot end: all ranks wait for each other, the missing rank has left, or the time is over.
  // check_time first warns.
  Result<void> check_stuck(Watch& watch, runtime::TimePoint now);
  Result<void> check_left(Watch& watch, runtime::TimePoint now) const;
  Result<void> check_time(Watch& watch, runtime::TimePoint now) const;
  // True when all ranks have waited without progress since the last check: then no wait can end.
  bool all_stuck(Watch& watch) const;

  int first_lost() const;  // first rank that is gone without having left, or -1
  bool has_left(int rank) const;
  // The rank of this host that states what `rank` does: `rank` itself, or its partner if it is on another host.
  int reporter_of(int rank) const;
  Error lost(int rank) const;
  std::string describe(int rank) const;

  Control& control_;
  const int rank_;
  const Hosts& hosts_;
  const Units& units_;
  Reducer& reducer_;
  const Stepper& stepper_;
  HostLink* const link_;
  const std::shared_ptr<runtime::Clock> clock_;
  const Options options_;
  const OwnerProcess owner_;
  std::function<bool()> interrupt_by_;
  std::function<void(bool)> waits_;
  std::function<std::uint64_t()> ended_steps_;
  std::uint64_t num_waits_ = 0;
};

}  // namespace shoal::fsdp
