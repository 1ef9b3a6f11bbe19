// One sharded model on one rank: its units, the ranks that share them, leases, reductions, and the steps that use all of these.
//
// Python's hooks or a hand-written graph report the program's position. The model then takes and drops leases, publishes and reduces
// gradients, opens the write window, and waits for peers. One thread at a time (the main thread, or a StepRunner's communication lane),
// except for peers().mark_gone() and peers().at().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout/hosts.h"
#include "fsdp/link/host_link.h"
#include "fsdp/plan/stepper.h"
#include "fsdp/protocol/control.h"
#include "fsdp/protocol/reducer.h"
#include "fsdp/shard/leases.h"
#include "fsdp/shard/peers.h"
#include "fsdp/shard/reductions.h"
#include "fsdp/unit/sharded_unit.h"

namespace shoal::fsdp {

class ShardedModel {
 public:
  struct Options {
    PlanOptions plan;
    Peers::Options waits;
    int slots = 2;  // units whose whole gradients a rank may have in flight
    Reducer::SumOrder order = Reducer::SumOrder::kTree;
    // For ranks on several hosts: the host of each rank (layout/hosts.h), and messages among all ranks.
    std::vector<int> host_of_rank = {};
    // The ranks' places in the tree of additions (Hosts::place_of); empty: each rank's place is its number.
    std::vector<int> places = {};
    Hosts hosts(int world_size) const;
    std::shared_ptr<runtime::MessageLayer> layer = {};
  };

  // `control` and `slots` are the model's memories, of control_bytes and slot_bytes bytes, which the ranks of a host share.
  ShardedModel(int rank, Grid grid, Units units, runtime::Mapping control, runtime::Mapping slots, std::shared_ptr<runtime::Clock> clock,
               Options options);
  ~ShardedModel();  // leaves: waits of other ranks that still need this one fail

  static std::size_t control_bytes(const Units& units, int world_size) { return Control::bytes(world_size, units.size()); }
  static std::size_t slot_bytes(const Units& units, const Hosts& hosts, int rank, int slots);

  // ---- a step, driven by hooks ----
  // The root's forward begins: this rank's writes become the next version. `training`: gradients are needed, so this is part of a step.
  // True if a new step or an evaluation begins: the caller then follows schedule().
  Result<bool> enter(bool training);
  // The units that the present step unshards ahead; null if there is no plan yet, or in an evaluation.
  std::shared_ptr<const Schedule> schedule() const { return stepping() ? stepper_.schedule() : nullptr; }
  // A unit's forward begins or ends. This rank holds a lease on the unit in between; `reshard` drops the lease at the end.
  Result<void> forward_begin(std::size_t unit, bool training);
  void forward_end(std::size_t unit, bool training, bool reshard);
  // A unit's backward begins; its forward read `version` (leases().version()). Errors: as Leases::check_version.
  Result<void> backward_begin(std::size_t unit, std::uint64_t version);
  // All of a unit's gradients are present. They are sent to their owners and may be freed on return. With empty `gradients` the caller
  // keeps them (no_sync).
  Result<void> backward_end(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how, bool reshard);
  // Ends the backward pass: waits for this rank's reductions and, if anything was published, for every peer's publications. With `leave`
  // this rank stops reading the version, and its write window is open on return.
  Result<void> finish_backward(bool leave);
  // Called before and after an optimizer's writes. With `unit` >= 0 the optimizer runs in backward, on this unit's rows.
  void optimizer_begin();
  void optimizer_end(std::int32_t unit = -1);
  // Under protection (protect/protected_shard.h): this rank has recorded optimizer step `step`. Waits until every rank has recorded. Then
  // the step counts, and the call succeeds, also if a rank has died since. An error leaves open whether the step counts, because other
  // ranks may still record it. After Cancelled or DeadlineExceeded the caller calls again; after a death it also reads records and
  // replicas.
  Result<void> commit(std::uint64_t step);
  // True if this rank knows by a control word that `rank` has recorded this step. The word of a rank of another host may come late, or
  // never if that host is lost.
  bool has_recorded(int rank, std::uint64_t step) const;
  // Changes how steps are planned from the next one on.
  void plan(PlanOptions options) { stepper_.replan(std::move(options)); }

  // ---- a step, driven by a hand-written graph (StepRunner); a step machine uses unshard and reshard, too ----
  // Takes a lease, which enters the engine.
  Result<void> unshard(std::size_t unit, bool backward = false);
  // Unshards a unit before its use. Does nothing if this rank has given the unit up.
  Result<void> unshard_ahead(std::size_t unit, bool backward) { return leases_.given_up(unit) ? Result<void>() : unshard(unit, backward); }
  void reshard(std::size_t unit, bool backward = false);
  // As Reductions::publish.
  Result<void> publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how);

  // Ends a complete step, between two steps: its measurements become readable.
  void end_step();
  // Abandons a step after an exception: drops leases and all pending gradients. Peers must do the same; a rank that does not fails at the
  // end of its backward pass.
  void reset();

  // ---- a rank without further batches serves the other ranks (shoal.fsdp.join) ----
  struct Service {
    enum class What { kPublish, kWindow, kNothing } what = What::kNothing;
    std::size_t unit = 0;  // the unit to publish
  };
  // Declares that this rank has joined.
  void join();
  // Waits until other ranks need this rank's gradients of a unit, or its write window. Returns kNothing once all ranks have joined.
  Result<Service> next_service();

  // This rank no longer uses the model (Peers::leave). Returns once other hosts have the data that they still need of it. Does nothing in a
  // forked child, which is no rank.
  void leave();

  Peers& peers() { return peers_; }
  Leases& leases() { return leases_; }
  Reductions& reductions() { return reductions_; }
  const Units& units() const { return units_; }
  const Stepper& stepper() const { return stepper_; }
  int rank() const { return rank_; }
  // The engine's memory for this model on this host, in bytes, for all ranks together.
  struct Memory {
    std::size_t arenas = 0, slots = 0, control = 0;
    std::size_t total() const { return arenas + slots + control; }
  };
  Memory memory() const;

 private:
  // True in the version in which the stepper began its step.
  bool stepping() const { return stepped_version_ != 0 && stepped_version_ == leases_.version(); }
  int first_behind_join() const;  // first rank that still has batches after this one joined, or -1

  const int rank_;
  const int world_size_;
  const Units units_;
  const runtime::Mapping control_memory_, slot_memory_;
  bool slots_populated_ = false;  // with the first gradients: an evaluation needs no slots
  const Hosts hosts_;
  Control control_;
  const Slots slots_;
  const std::unique_ptr<HostLink> link_;  // for ranks on several hosts
  Reducer reducer_;
  Stepper stepper_;
  Peers peers_;
  Leases leases_;
  Reductions reductions_;
  std::uint64_t stepped_version_ = 0;  // version in which the stepper has begun a step; 0: none, or the step has ended
  runtime::TimePoint optimizer_began_{};
};

}  // namespace shoal::fsdp
