// One sharded model on one rank: its units, the gate for their shared rows, the reduction of their gradients, and its steps.
//
// Python's hooks or a hand-written graph report the program's position. The model then takes and drops leases, publishes and reduces
// gradients, opens the write window, and waits for peers. Every wait serves due reductions, detects dead peers at once, names the missing
// rank after `warn_after`, and fails after `timeout`. One thread at a time (the main thread, or a StepRunner's communication lane), except
// for mark_gone() and at().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/graph/stepper.h"
#include "fsdp/protocol/control.h"
#include "fsdp/protocol/reducer.h"
#include "fsdp/protocol/version_gate.h"
#include "fsdp/shard/exchange.h"
#include "fsdp/shard/sharded_unit.h"

namespace shoal::fsdp {

class ShardedModel {
 public:
  struct Options {
    PlanOptions plan;
    runtime::Duration warn_after = std::chrono::seconds(5);
    runtime::Duration timeout = std::chrono::seconds(600);
    int spins = 300;  // polls before a wait sleeps; 0 where ranks outnumber cores
    int slots = 2;    // units whose whole gradients a rank may have in flight
    std::function<bool()> interrupted;
    std::function<void(const std::string&)> warn;
    // For ranks without shared memory: control, slots and the units' arenas are then private to this rank (exchange.h).
    std::shared_ptr<runtime::Communicator> communicator;
  };
  using Units = std::vector<std::shared_ptr<ShardedUnit>>;

  // `control` and `slots` are the model's shared memories, of control_bytes and slot_bytes bytes.
  ShardedModel(int rank, Grid grid, Units units, runtime::Mapping control, runtime::Mapping slots, std::shared_ptr<runtime::Clock> clock,
               Options options);
  ~ShardedModel();

  static std::size_t control_bytes(int world_size) { return Control::bytes(world_size); }
  static std::size_t slot_bytes(const Units& units, Grid grid, int slots);

  // ---- a step, driven by hooks ----
  // The root's forward begins: this rank's writes become the next version. `training`: gradients are needed, so this is part of a step.
  Result<void> enter(bool training);
  // A unit's forward begins or ends. It holds a lease in between; `reshard` drops the lease at the end.
  Result<void> forward_begin(std::size_t unit, bool training);
  void forward_end(std::size_t unit, bool training, bool reshard);
  // Checks that a backward may continue, that is, its forward's `version` is still current. Fails when that version is gone.
  Result<void> check_version(std::size_t unit, std::uint64_t version) const;
  // A unit's backward begins; its forward read `version` (version()). Errors: as check_version.
  Result<void> backward_begin(std::size_t unit, std::uint64_t version);
  // All of a unit's gradients are present. They are sent to their owners and may be freed on return. With empty `gradients` the caller
  // keeps them (no_sync).
  Result<void> backward_end(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how, bool reshard);
  // Waits until this rank's publications are reduced: only then may a unit be published again, as its gradients are added up.
  Result<void> await_reductions();
  // Ends the backward pass: waits for this rank's reductions and, if anything was published, for every peer's publications. With `leave`
  // this rank stops reading the version, and its write window is open on return.
  Result<void> finish_backward(bool leave);
  // Units reduced since the last call.
  std::vector<Reducer::Reduced> take_reduced() { return reducer_.take_reduced(); }

  // Stops reading a unit in this version once its gradients are published (optimizer in backward). After their reduction its rows may be
  // written before the window opens. Its leases and backwards fail until the next version.
  void give_up(std::size_t unit) { given_up_[unit] = gate_.version(); }
  // Changes how steps are planned from the next one on.
  void plan(PlanOptions options) { stepper_.replan(std::move(options)); }
  // The engine's memory for this model on this host, in bytes, for all ranks together.
  struct Memory {
    std::size_t arenas = 0, slots = 0, control = 0;
    std::size_t total() const { return arenas + slots + control; }
  };
  Memory memory() const;

  // ---- a step, driven by a hand-written graph (StepRunner); FSDPModule uses unshard and reshard, too ----
  //
  // Sends a unit's gradients to their owners; they may be freed on return. await_reductions() waits for this rank's rows of the mean.
  Result<void> publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how);
  // The sum of every rank's part, added in the order of ranks: the same bits on each. Every rank requests the same sums in the same order.
  // InvalidArgument/Diverged when another rank has started over and this one has not (reset).
  Result<double> sum_over_ranks(double part);
  // Sets the predicate that can interrupt waits, polled now and then; empty: Options::interrupted again.
  void interrupt_by(std::function<bool()> interrupted) { interrupt_by_ = std::move(interrupted); }
  // Sets this rank's position, which is shown to ranks that wait for it.
  void at(Doing doing, std::size_t unit);
  // Takes a lease, which enters the engine.
  Result<void> unshard(std::size_t unit, bool backward = false);
  void reshard(std::size_t unit, bool backward = false);

  // ---- writing ----
  // Opens this rank's write window: waits until no rank reads this version. `caller` names the caller in messages about the wait.
  Result<void> open_window(const std::string& caller);
  bool window_open() const { return gate_.phase() == VersionGate::Phase::kWriting; }
  // Bracket an optimizer's writes; `unit` >= 0: in backward, to this unit's rows.
  void optimizer_begin();
  void optimizer_end(std::int32_t unit = -1);

  // Ends a complete step, between two steps: its measurements become readable.
  void end_step();

  // Abandons a step after an exception: drops leases and all pending gradients. Peers must do the same; a rank that does not fails at the
  // end of its backward pass.
  void reset();

  // ---- a rank without further batches serves the others (Join) ----
  struct Asked {
    enum class What { kPublish, kWindow, kNothing } what = What::kNothing;
    std::size_t unit = 0;  // to publish
  };
  // Declares that this rank has joined.
  Result<void> join();
  // Waits for the others' next need of this rank: a unit's gradients, its write window, or nothing when all have joined.
  Result<Asked> asked();

  // This rank's program no longer uses the model; it may end or continue. Peers that still need something of this rank fail, others are not
  // affected.
  void leave();

  std::uint64_t version() const { return gate_.version(); }
  const Units& units() const { return units_; }
  const Stepper& stepper() const { return stepper_; }
  // Marks this rank as gone on the membership page, from any thread: pending and later calls on every rank fail with `cause`.
  void mark_gone(const std::string& cause) { control_.membership_page().mark_gone(static_cast<std::uint32_t>(rank_), cause); }
  int rank() const { return rank_; }

 private:
  struct Waiting {
    std::string for_what;
    std::function<int()> missing;  // a rank that is missing, -1 when unknown
  };
  Result<void> wait(const std::function<bool()>& done, const Waiting& waiting);
  // True when all ranks have waited without progress since `before`: then no wait can end.
  bool all_stuck(std::vector<std::pair<std::uint64_t, std::uint64_t>>& before) const;
  int first_behind_join() const;  // first rank that still has batches after this one joined, or -1
  int first_lost() const;         // first rank that is gone without having left, or -1
  bool has_left(int rank) const;
  Error lost(int rank) const;
  Error started_over(int rank) const;
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
  std::unique_ptr<Exchange> exchange_;   // for ranks without shared memory
  std::vector<std::uint64_t> gathered_;  // with exchange_: the gathered version of each unit
  Stepper stepper_;
  std::uint64_t fingerprint_ = 0;
  bool fingerprints_checked_ = false;
  bool stepping_ = false;       // the stepper has begun this version's step
  bool published_any_ = false;  // during this backward pass
  std::uint64_t waits_ = 0;
  std::uint64_t num_sums_ = 0;           // above the attempt's first number (reducer.h)
  std::vector<std::uint64_t> given_up_;  // by unit: the version in which it was given up; 0: never
  runtime::TimePoint optimizer_began_{};
};

}  // namespace shoal::fsdp
