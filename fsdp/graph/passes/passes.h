// Passes: pure functions from one step graph to another, each in a file of its own. apply() runs them in the order in which they fit.
//
// They take what somebody wrote by hand or what was traced, and say InvalidArgument where a graph has nothing they could work on.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

struct Rewritten {
  StepGraph graph;
  std::vector<std::int32_t> from;  // by node: which one it was before, -1 for a new one. Of copies, several were the same.
};

// A unit's own list of what is unsharded when it begins to compute (FSDP2: set_modules_to_forward_prefetch and _backward_prefetch).
struct PrefetchList {
  std::int32_t unit = 0;
  bool backward = false;
  std::vector<std::int32_t> ahead;
  bool operator==(const PrefetchList&) const = default;
};
struct Prefetch {
  int depth = 1;                         // compute nodes from where an unshard begins to the one that reads it; 0: on demand
  std::vector<PrefetchList> lists = {};  // for the units in them, instead of `depth`
  bool operator==(const Prefetch&) const = default;
};
// An unshard begins that early, though never before the reshard that ends the unit's lease before.
Result<Rewritten> prefetch(const StepGraph& graph, const Prefetch& how);

// Per unit: whether its lease is given back between forward and backward, and taken again.
Result<Rewritten> reshard(const StepGraph& graph, const std::vector<bool>& after_forward);

// A step of k micro-batches: the nodes of one, k times. Gradients add up on each rank, and only the last one is reduced; with reduce_each
// every one is, into the owners' rows (more communication, no whole gradients kept).
struct Accumulate {
  int micro_batches = 1;
  bool reduce_each = false;
};
Result<Rewritten> accumulate(const StepGraph& graph, const Accumulate& how);

// Activation checkpointing: these units' forwards save nothing, and run again right before their backwards.
Result<Rewritten> recompute(const StepGraph& graph, const std::vector<std::int32_t>& units);

// Small units are unsharded, resharded and reduced together: neighbours in forward, each of less than bucket_bytes, and not more than that
// in one bucket. Units that hold their leases differently stay apart.
Result<Rewritten> bucket(const StepGraph& graph, const std::vector<std::size_t>& unit_bytes, std::size_t bucket_bytes);

// A clip_norm node between the last reduction and the updates: gradients are scaled so that their norm, over all units and ranks, is at
// most max_norm (torch.nn.utils.clip_grad_norm_).
Result<Rewritten> clip_norm(const StepGraph& graph, double max_norm);

// Each unit is updated as soon as its gradients are reduced: by then every rank has published them and reads the unit no more. One backward
// node later on the compute lane, so that the reduction is hidden. InvalidArgument with a clip_norm: that needs all gradients first.
Result<Rewritten> optimizer_in_backward(const StepGraph& graph);

// These units' optimizer state lies outside and is there around the update only: fetch(u) while the unit before is updated, offload(u)
// behind. At most two units' state is there at a time.
Result<Rewritten> offload(const StepGraph& graph, const std::vector<std::int32_t>& units);

// What units take while they are leased, where unsharding takes memory (several hosts, devices): the most that leases hold at a time,
// however the lanes run.
std::size_t leased_bytes(const StepGraph& graph, const std::vector<std::size_t>& unsharded_bytes);

// The plan with the fewest reshards whose leases, and fixed_bytes besides, fit into a budget; of those, the deepest prefetch.
struct Budget {
  std::size_t bytes = 0;
  std::size_t fixed_bytes = 0;
  std::vector<std::size_t> unsharded_bytes;  // by unit; 0 where a lease takes nothing (in place on one host)
  int max_prefetch = 3;
};
struct Fitted {
  Prefetch prefetch;
  std::vector<bool> reshard_after_forward;
  std::size_t bytes = 0;  // fixed_bytes, and what the leases take
};
// ResourceExhausted says the smallest budget that would do.
Result<Fitted> fit(const StepGraph& graph, const Budget& budget);

struct PassOptions {
  Prefetch prefetch;
  std::vector<bool> reshard_after_forward;  // by unit; empty: as the graph has it
  std::vector<std::int32_t> recompute;
  Accumulate accumulate;
  std::vector<std::size_t> unit_bytes;  // for bucket_bytes
  std::size_t bucket_bytes = 0;         // 0: no buckets
  double max_norm = 0;                  // 0: not clipped
  bool optimizer_in_backward = false;
  std::vector<std::int32_t> offload;
};
Result<Rewritten> apply(const StepGraph& graph, const PassOptions& options);

}  // namespace shoal::fsdp
