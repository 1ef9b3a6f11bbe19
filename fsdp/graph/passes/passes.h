// Passes: pure functions from one step graph to another, each in its own file. apply() runs them in a valid order.
//
// The input is a hand-written or traced graph. A pass returns InvalidArgument if it does not apply to the graph.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

struct Rewritten {
  StepGraph graph;
  std::vector<std::int32_t> from;  // by node: its id in the input graph, -1 for a new node; copies share an id
};

// A unit's list of units to unshard when it begins to compute (FSDP2: set_modules_to_forward_prefetch and _backward_prefetch).
struct PrefetchList {
  std::int32_t unit = 0;
  bool backward = false;
  std::vector<std::int32_t> ahead;
  bool operator==(const PrefetchList&) const = default;
};
struct Prefetch {
  int depth = 1;                         // compute nodes between an unshard's begin and its reader; 0: on demand
  std::vector<PrefetchList> lists = {};  // override `depth` for the listed units
  bool operator==(const Prefetch&) const = default;
};
// Moves unshards to earlier places, but never before the reshard that ends the unit's previous lease.
Result<Rewritten> prefetch(const StepGraph& graph, const Prefetch& how);

// `after_forward`, by unit: true drops the unit's lease after its forward, and takes another one before its backward.
Result<Rewritten> reshard(const StepGraph& graph, const std::vector<bool>& after_forward);

// Makes a step of k micro-batches, which has each node k times. Gradients add up on each rank, and only the last sum is reduced. With
// reduce_each every micro-batch is reduced into the owners' rows: more communication, but no whole gradients are kept.
struct Accumulate {
  int micro_batches = 1;
  bool reduce_each = false;
};
Result<Rewritten> accumulate(const StepGraph& graph, const Accumulate& how);

// Activation checkpointing: the forwards of `units` save nothing, and run again right before the units' backwards.
Result<Rewritten> recompute(const StepGraph& graph, const std::vector<std::int32_t>& units);

// Merges small units' unshards, reshards and reductions. A bucket holds neighbours in forward, each below bucket_bytes and together at most
// that. Units with different lease patterns stay apart.
Result<Rewritten> bucket(const StepGraph& graph, const std::vector<std::size_t>& unit_bytes, std::size_t bucket_bytes);

// Adds a clip_norm node between the last reduction and the updates. It scales gradients so that their norm over all units and ranks is at
// most max_norm (torch.nn.utils.clip_grad_norm_).
Result<Rewritten> clip_norm(const StepGraph& graph, double max_norm);

// Updates each unit as soon as its gradients are reduced: by then every rank has published them and reads the unit no more. The update
// follows one more backward node, which hides the reduction. Returns InvalidArgument for a graph with a clip_norm, which needs all
// gradients first.
Result<Rewritten> optimizer_in_backward(const StepGraph& graph);

// Keeps the optimizer state of `units` outside memory except around the update. fetch(u) runs during the previous unit's update, offload(u)
// after its own. At most two units' state is in memory at a time.
Result<Rewritten> offload(const StepGraph& graph, const std::vector<std::int32_t>& units);

// The largest sum of leased units' bytes, however the lanes run. For setups where unsharding takes memory (several hosts, devices).
std::size_t leased_bytes(const StepGraph& graph, const std::vector<std::size_t>& unsharded_bytes);

// A budget of memory for fit(). The result has the fewest reshards whose leases and fixed_bytes fit into it, and then the deepest prefetch.
struct Budget {
  std::size_t bytes = 0;
  std::size_t fixed_bytes = 0;
  std::vector<std::size_t> unsharded_bytes;  // by unit; 0 where a lease takes no memory (in place on one host)
  int max_prefetch = 3;
};
struct Fitted {
  Prefetch prefetch;
  std::vector<bool> reshard_after_forward;
  std::size_t bytes = 0;  // fixed_bytes plus the leases
};
// Returns ResourceExhausted, which names the smallest sufficient budget, if `budget` is too small.
Result<Fitted> fit(const StepGraph& graph, const Budget& budget);

struct PassOptions {
  Prefetch prefetch;
  std::vector<bool> reshard_after_forward;  // by unit; empty: reshards stay as they are
  std::vector<std::int32_t> recompute;
  Accumulate accumulate;
  std::vector<std::size_t> unit_bytes;  // by unit; read only if bucket_bytes is not 0
  std::size_t bucket_bytes = 0;         // 0: no buckets
  double max_norm = 0;                  // 0: no clipping
  bool optimizer_in_backward = false;
  std::vector<std::int32_t> offload;
};
Result<Rewritten> apply(const StepGraph& graph, const PassOptions& options);

}  // namespace shoal::fsdp
