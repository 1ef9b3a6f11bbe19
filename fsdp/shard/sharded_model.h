// One sharded model on one rank: its units, the gate that makes their shared rows safe, the reduction of their gradients, and its steps.
//
// Python's hooks (or a hand-written graph) say where the program is; this decides what that means: takes and drops leases, publishes and
// reduces gradients, opens the write window, waits for peers. Every wait serves reductions that are due, hears of dead peers at once, says
// after `warn_after` for whom it waits, and gives up after `timeout`. One thread at a time (main, or a StepRunner's communication lane),
// except for mark_gone() and at().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/graph/stepper.h"
#include "fsdp/shard/control.h"
#include "fsdp/shard/exchange.h"
#include "fsdp/shard/reducer.h"
#include "fsdp/shard/sharded_unit.h"
#include "fsdp/shard/version_gate.h"

namespace shoal::fsdp {

class ShardedModel {
 public:
  struct Options {
    PlanOptions plan;
    runtime::Duration warn_after = std::chrono::seconds(5);
    runtime::Duration timeout = std::chrono::seconds(600);
    int spins = 300;  // looks before a wait sleeps; 0 where ranks outnumber cores
    int slots = 2;    // units whose whole gradients a rank may have in flight
    std::function<bool()> interrupted;
    std::function<void(const std::string&)> warn;
    // Of ranks that share no memory: then control, slots and the units' arenas are this rank's own (exchange.h).
    std::shared_ptr<runtime::Communicator> communicator;
  };
  using Units = std::vector<std::shared_ptr<ShardedUnit>>;

  // `control` and `slots` are the model's shared memories, of control_bytes and slot_bytes.
  ShardedModel(int rank, Grid grid, Units units, runtime::Mapping control, runtime::Mapping slots, std::shared_ptr<runtime::Clock> clock,
               Options options);
  ~ShardedModel();

  static std::size_t control_bytes(int world_size) { return Control::bytes(world_size); }
  static std::size_t slot_bytes(const Units& units, Grid grid, int slots);

  // ---- a step, as hooks see it ----
  // The root's forward begins: what this rank wrote becomes the next version. `training`: gradients are wanted, so this is part of a step.
  Result<void> enter(bool training);
  // A unit's forward begins or ends. It holds a lease from begin to end, and with `reshard` not longer.
  Result<void> forward_begin(std::size_t unit, bool training);
  void forward_end(std::size_t unit, bool training, bool reshard);
  // A backward may go on with what its forward read: that is still `version`. Errors: that version is gone.
  Result<void> check_version(std::size_t unit, std::uint64_t version) const;
  // Its backward begins, of a forward that read `version` (version()). Errors: as check_version.
  Result<void> backward_begin(std::size_t unit, std::uint64_t version);
  // All its gradients are there. With `gradients` they go to their owners and may be freed when this returns; without, the caller keeps
  // them (no_sync).
  Result<void> backward_end(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how, bool reshard);
  // Waits until what this rank has published is reduced: a unit is published again only then, because its gradients are added up.
  Result<void> await_reductions();
  // The backward pass is over: waits until this rank's reductions are done and, if anything was published, every peer has published, too.
  // With `leave` it reads this version no more, and returns with its write window open.
  Result<void> finish_backward(bool leave);
  // Units whose reductions are done, since the last call.
  std::vector<Reducer::Reduced> take_reduced() { return reducer_.take_reduced(); }

  // This rank reads a unit no more in this version, once it has published its gradients: then its rows may be written before the window
  // opens, as soon as they are reduced (optimizer in backward). Leases and backwards of it fail until the next version.
  void give_up(std::size_t unit) { given_up_[unit] = gate_.version(); }
  // How steps are planned from the next one on.
  void plan(PlanOptions options) { stepper_.replan(std::move(options)); }
  // What the engine holds for this model on this host, for all ranks together.
  struct Memory {
    std::size_t arenas = 0, slots = 0, control = 0;
    std::size_t total() const { return arenas + slots + control; }
  };
  Memory memory() const;

  // ---- a step, as a graph that was written by hand has it (StepRunner); unshard and reshard are also FSDPModule's ----
  // One unit's gradients to their owners: they may be freed when this returns. await_reductions() waits for this rank's rows of the mean.
  Result<void> publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how);
  // The sum of what every rank brings, added in their order: the same bits on each. Every rank asks for the same sums in the same order.
  Result<double> sum_over_ranks(double part);
  // Who may end a wait from now on, asked now and then; empty: Options::interrupted again.
  void interrupt_by(std::function<bool()> interrupted) { interrupt_by_ = std::move(interrupted); }
  // Where this rank's program is: shown to ranks that wait for it.
  void at(Doing doing, std::size_t unit);
  // Taking a lease enters the engine.
  Result<void> unshard(std::size_t unit, bool backward = false);
  void reshard(std::size_t unit, bool backward = false);

  // ---- writing ----
  // Opens this rank's write window: waits until no rank reads this version. `door` names who asks, for those who wait.
  Result<void> open_window(const std::string& door);
  bool window_open() const { return gate_.phase() == VersionGate::Phase::kWriting; }
  // An optimizer wrote between these two; in backward: this unit's rows.
  void optimizer_begin();
  void optimizer_end(std::int32_t unit = -1);

  // Between two steps: the last one is complete and can be looked at.
  void end_step();

  // An exception left a step half-way: leases are dropped and what this rank had published or not is forgotten. Peers must do the same: a
  // rank that does not is told so when its backward pass ends.
  void reset();

  // ---- a rank that has no more batches serves those who have (Join) ----
  struct Asked {
    enum class What { kPublish, kWindow, kNothing } what = What::kNothing;
    std::size_t unit = 0;  // to publish
  };
  // Says that this rank has joined.
  Result<void> join();
  // Waits for what the others want of it next: its part of a unit's gradients, its write window, or nothing any more: all have joined.
  Result<Asked> asked();

  // This rank's program is done with the model. It may end, or go on without: peers that still need something of it are told so, others
  // do not notice.
  void leave();

  std::uint64_t version() const { return gate_.version(); }
  const Units& units() const { return units_; }
  const Stepper& stepper() const { return stepper_; }
  // The board's word that a rank is gone, from any thread: waiting and later calls on every rank fail with it.
  void mark_gone(const std::string& cause) { control_.board().mark_gone(static_cast<std::uint32_t>(rank_), cause); }
  int rank() const { return rank_; }

 private:
  struct Waiting {
    std::string for_what;
    std::function<int()> missing;  // a rank that has not come, -1 when unknown
  };
  Result<void> wait(const std::function<bool()>& done, const Waiting& waiting);
  // Whether every rank waits, and has done so for a while, for something that only another one can do.
  bool all_stuck(std::vector<std::pair<std::uint64_t, std::uint64_t>>& before) const;
  int first_behind_join() const;  // the first rank that has batches when this one has none, or -1
  int first_lost() const;         // the first rank that is gone without having left, or -1
  bool has_left(int rank) const;
  Error lost(int rank) const;
  Result<void> check_peers() const { return first_lost() < 0 ? Result<void>() : fail(lost(first_lost())); }
  Result<void> check_fingerprints();
  Result<void> check_given_up(std::size_t unit) const;
  std::string describe(int rank) const;
  Result<void> serve_due(bool& served);
  Result<void> follow(const std::vector<std::int32_t>& nodes, std::size_t current, bool& published,
                      std::span<const Reducer::Gradient> gradients, Reducer::How how, bool may_reshard);
  Result<void> enter_gate();
  std::uint32_t step() const { return static_cast<std::uint32_t>(stepper_.steps()); }

  const int rank_;
  const int world_size_;
  const Units units_;
  const runtime::Mapping control_memory_, slot_memory_;
  const Options options_;
  std::function<bool()> interrupt_by_;
  const std::shared_ptr<runtime::Clock> clock_;
  Control control_;
  VersionGate gate_;
  Reducer reducer_;
  std::unique_ptr<Exchange> exchange_;   // of ranks that share no memory
  std::vector<std::uint64_t> gathered_;  // then: the version of each unit that is here
  Stepper stepper_;
  std::uint64_t fingerprint_ = 0;
  bool fingerprints_checked_ = false;
  bool stepping_ = false;       // the stepper knows of this version's step
  bool published_any_ = false;  // in this backward pass
  std::uint64_t waits_ = 0;
  std::uint64_t num_sums_ = 0;
  std::vector<std::uint64_t> given_up_;  // by unit, in which version; 0: never
  runtime::TimePoint optimizer_began_{};
};

}  // namespace shoal::fsdp
