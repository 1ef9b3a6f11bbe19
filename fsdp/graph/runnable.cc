#include "fsdp/graph/runnable.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "fsdp/graph/order.h"

namespace shoal::fsdp {

namespace {

constexpr std::int32_t kNone = -1;

class Checker {
 public:
  explicit Checker(const StepGraph& graph) : graph_(graph), units_(graph.units().size()) {}

  Result<void> check() {
    for (const auto& n : graph_.nodes()) {
      order_.add(graph_, n);
      SHOAL_OK(visit(n));
    }
    for (const auto& u : units_) {
      if (u.unshard != kNone) return fail(wrong(node(u.unshard), "has no reshard: its lease would outlive the step"));
      if (u.unreduced != kNone) return fail(wrong(node(u.unreduced), "has no reduce_scatter: its gradients would be lost"));
      if (u.fetched != kNone && u.updated == kNone) return fail(wrong(node(u.fetched), "has no update after it"));
      if (u.fetched != kNone && u.offloaded == kNone) {
        return fail(
            wrong(node(u.fetched), fmt::format("has no offload after {}: the next step would fetch older optimizer state", name(u.updated)))
                .with_hint("add an offload of this unit after its update, or drop the fetch"));
      }
    }
    for (std::int32_t micro = 0; micro < std::max(1, num_micro_batches(graph_)); ++micro) {
      if (losses_.count(micro) > 0) continue;
      if (micro > 0 || !losses_.empty())
        return fail(invalid_argument(fmt::format("micro-batch {} of this step graph has no loss", micro)).with_reason("BadGraph"));
      return fail(invalid_argument("this step graph has no loss: there would be nothing to wait for").with_reason("BadGraph"));
    }
    return {};
  }

 private:
  // A unit's nodes in one micro-batch.
  struct Turn {
    std::int32_t forward = kNone, recompute = kNone, backward = kNone, reduced = kNone;
  };
  struct Unit {
    std::int32_t unshard = kNone;  // begin of the current lease
    std::int32_t reshard = kNone;  // end of the previous lease
    std::vector<std::int32_t> readers;
    std::map<std::int32_t, Turn> turns;  // by micro-batch: the unit's nodes
    std::int32_t last_forward = kNone, last_reader = kNone, last_reduced = kNone;
    std::int32_t unreduced = kNone;  // the first backward after the last reduce_scatter
    std::int32_t updated = kNone, fetched = kNone, offloaded = kNone;
  };

  const Node& node(std::int32_t id) const { return graph_.nodes()[static_cast<std::size_t>(id)]; }
  std::string name(std::int32_t id) const { return fmt::format("{} (node {})", graph_.label(node(id)), id); }
  Error wrong(const Node& n, const std::string& what) const {
    return invalid_argument(fmt::format("{} {}", name(n.id), what)).with_reason("BadGraph");
  }
  bool before(std::int32_t a, const Node& b) const { return order_.before(node(a), b); }
  Result<void> after(std::int32_t a, const Node& b) const {
    if (before(a, b)) return {};
    return fail(wrong(b, fmt::format("does not wait for {}: add an edge from that node", name(a))));
  }

  Result<void> visit(const Node& n) {
    if (n.part != 0) return fail(wrong(n, "names a part of a unit, but only a traced step has parts"));
    const bool of_all = n.op == Op::kCommit || n.op == Op::kClipNorm;
    if (n.unit < 0 && !of_all && n.op != Op::kForward) return fail(wrong(n, "needs a unit"));
    if (n.unit >= 0 && of_all) return fail(wrong(n, "is for all units at once"));
    const bool of_update = n.op == Op::kOptimizerUpdate || n.op == Op::kFetch || n.op == Op::kOffload;
    if (n.micro != 0 && (of_all || of_update)) return fail(wrong(n, "belongs to the whole step, not to a micro-batch"));
    if (commit_ != kNone && !of_update && n.op != Op::kCommit)
      return fail(wrong(n, "runs after the commit, when parameters may be written"));
    if (n.op == Op::kCommit) return commit(n);
    if (n.op == Op::kClipNorm) return clip_norm(n);
    if (n.op == Op::kForward && n.unit < 0) return loss(n);
    SHOAL_OK(visit(n, unit(n.unit)));
    for (const auto also : n.also) SHOAL_OK(visit(n, unit(also)));
    return {};
  }

  Unit& unit(std::int32_t index) { return units_[static_cast<std::size_t>(index)]; }

  Result<void> visit(const Node& n, Unit& u) {
    switch (n.op) {
      case Op::kUnshard:
        return unshard(n, u);
      case Op::kReshard:
        return reshard(n, u);
      case Op::kForward:
        return forward(n, u);
      case Op::kRecompute:
        return recompute(n, u);
      case Op::kBackward:
        return backward(n, u);
      case Op::kReduceScatter:
        return reduce_scatter(n, u);
      case Op::kOptimizerUpdate:
        return update(n, u);
      case Op::kFetch:
      case Op::kOffload:
        return host_copy(n, u);
      default:
        return fail(unimplemented(fmt::format("{} cannot be run: {} has no node of its own, reduce_scatter sums over replicas, too",
                                              name(n.id), op_name(n.op)))
                        .with_reason("BadGraph"));
    }
  }

  Result<void> unshard(const Node& n, Unit& u) {
    if (u.unshard != kNone) return fail(wrong(n, fmt::format("runs while {} holds the lease: reshard before", name(u.unshard))));
    if (u.updated != kNone) return fail(wrong(n, fmt::format("runs after {} has written the unit", name(u.updated))));
    u.unshard = n.id;
    u.readers.clear();
    return {};
  }

  Result<void> reshard(const Node& n, Unit& u) {
    if (u.unshard == kNone) return fail(wrong(n, "has no unshard before it"));
    for (const auto reader : u.readers) {
      if (!before(reader, n))
        return fail(wrong(n, fmt::format("may end the lease while {} reads: add an edge from that node", name(reader))));
    }
    u.reshard = n.id;
    u.unshard = kNone;
    return {};
  }

  Result<void> read(const Node& n, Unit& u) {
    if (u.updated != kNone) return fail(wrong(n, fmt::format("reads the unit after {} has written it", name(u.updated))));
    if (u.unshard == kNone && u.reshard != kNone) return fail(wrong(n, fmt::format("runs after {}: unshard again", name(u.reshard))));
    if (u.unshard == kNone) return fail(wrong(n, "has no unshard before it"));
    SHOAL_OK(after(u.unshard, n));
    u.readers.push_back(n.id);
    u.last_reader = n.id;
    return {};
  }

  // The only node whose output `n` reads, or kNone. Fails if there are two.
  Result<std::int32_t> input(const Node& n) const {
    std::int32_t found = kNone;
    for (const auto& e : n.after) {
      if (e.kind != EdgeKind::kData || (node(e.from).op != Op::kForward && node(e.from).op != Op::kBackward)) continue;
      if (found != kNone) return fail(wrong(n, fmt::format("reads two outputs, of {} and {}", name(found), name(e.from))));
      found = e.from;
    }
    if (found != kNone && node(found).micro != n.micro)
      return fail(wrong(n, fmt::format("reads the output of {}, which belongs to another micro-batch", name(found))));
    return found;
  }

  Result<void> forward(const Node& n, Unit& u) {
    Turn& turn = u.turns[n.micro];
    if (turn.forward != kNone) return fail(wrong(n, fmt::format("is a second forward of the unit, after {}", name(turn.forward))));
    SHOAL_OK(read(n, u));
    SHOAL_TRY(const auto from, input(n));
    if (from != kNone && (node(from).op != Op::kForward || node(from).unit < 0))
      return fail(wrong(n, fmt::format("cannot read the output of {}", name(from))));
    turn.forward = u.last_forward = n.id;
    return {};
  }

  Result<void> loss(const Node& n) {
    const auto [first, fresh] = losses_.emplace(n.micro, n.id);
    if (!fresh) return fail(wrong(n, fmt::format("is a second loss, after {}", name(first->second))));
    SHOAL_TRY(const auto from, input(n));
    if (from == kNone || node(from).op != Op::kForward) return fail(wrong(n, "reads no unit's output"));
    return {};
  }

  Result<void> recompute(const Node& n, Unit& u) {
    Turn& turn = u.turns[n.micro];
    if (turn.forward == kNone) return fail(wrong(n, "has no forward before it"));
    if (turn.recompute != kNone) return fail(wrong(n, fmt::format("is a second recompute of the unit, after {}", name(turn.recompute))));
    if (turn.backward != kNone) return fail(wrong(n, fmt::format("runs after {}, which needs it", name(turn.backward))));
    SHOAL_OK(read(n, u));
    SHOAL_TRY(const auto from, input(n));
    if (from != input_of(graph_, node(turn.forward)))
      return fail(wrong(n, fmt::format("does not read the input of {}", name(turn.forward))));
    turn.recompute = n.id;
    return {};
  }

  Result<void> backward(const Node& n, Unit& u) {
    Turn& turn = u.turns[n.micro];
    if (turn.forward == kNone) return fail(wrong(n, "has no forward before it"));
    if (turn.backward != kNone) return fail(wrong(n, fmt::format("is a second backward of the unit, after {}", name(turn.backward))));
    SHOAL_OK(read(n, u));
    SHOAL_TRY(const auto from, input(n));
    if (from == kNone) return fail(wrong(n, "reads no gradient: neither the loss's nor another backward's"));
    // The node that read this unit's output, a forward or the loss: `from` makes the gradient of that output.
    const std::int32_t reader = node(from).op == Op::kBackward ? unit(node(from).unit).turns[n.micro].forward : from;
    if (node(from).op == Op::kForward && node(from).unit >= 0)
      return fail(wrong(n, fmt::format("cannot read a gradient from {}", name(from))));
    if (input_of(graph_, node(reader)) != turn.forward) {
      return fail(wrong(
          n, fmt::format("reads the gradient of {}, but {} did not read the output of {}", name(from), name(reader), name(turn.forward))));
    }
    turn.backward = n.id;
    if (u.unreduced == kNone) u.unreduced = n.id;
    return {};
  }

  Result<void> reduce_scatter(const Node& n, Unit& u) {
    Turn& turn = u.turns[n.micro];
    if (turn.reduced != kNone) return fail(wrong(n, fmt::format("reduces again what {} did", name(turn.reduced))));
    if (turn.backward == kNone) return fail(wrong(n, "has no backward before it"));
    SHOAL_OK(after(turn.backward, n));
    if (clipped_ != kNone) return fail(wrong(n, fmt::format("runs after {}, which needs all gradients", name(clipped_))));
    if (u.updated != kNone) return fail(wrong(n, fmt::format("runs after {}, which needs its gradients", name(u.updated))));
    turn.reduced = u.last_reduced = n.id;
    u.unreduced = kNone;
    return {};
  }

  Result<void> clip_norm(const Node& n) {
    if (clipped_ != kNone) return fail(wrong(n, fmt::format("clips again after {}", name(clipped_))));
    if (!(n.value > 0)) return fail(wrong(n, fmt::format("has no positive largest norm, but {}", n.value)));
    for (const auto& u : units_) {
      if (u.updated != kNone)
        return fail(wrong(n, fmt::format("runs after {}: no unit can be updated before all are clipped", name(u.updated))));
      if (u.unreduced != kNone) return fail(wrong(n, fmt::format("runs before the gradients of {} are reduced", name(u.unreduced))));
      if (u.last_reduced != kNone) SHOAL_OK(after(u.last_reduced, n));
    }
    clipped_ = n.id;
    return {};
  }

  Result<void> commit(const Node& n) {
    if (commit_ != kNone) return fail(wrong(n, fmt::format("is a second commit, after {}", name(commit_))));
    for (const auto& u : units_) {
      // A unit's readers are on one lane: to be after the last one is to be after all.
      for (const auto id : {u.last_forward, u.last_reader, u.updated}) {
        if (id != kNone) SHOAL_OK(after(id, n));
      }
      if (u.unshard != kNone) return fail(wrong(n, fmt::format("runs while {} holds the lease: reshard before", name(u.unshard))));
      if (u.unreduced != kNone) return fail(wrong(n, fmt::format("runs before the gradients of {} are reduced", name(u.unreduced))));
    }
    commit_ = n.id;
    return {};
  }

  Result<void> update(const Node& n, Unit& u) {
    if (u.last_reduced == kNone) return fail(wrong(n, "has no reduce_scatter before it"));
    if (u.updated != kNone) return fail(wrong(n, fmt::format("is a second update of the unit, after {}", name(u.updated))));
    if (clipped_ != kNone) SHOAL_OK(after(clipped_, n));
    if (u.fetched != kNone) SHOAL_OK(after(u.fetched, n));
    if (commit_ != kNone) {
      SHOAL_OK(after(commit_, n));
    } else {
      // Without a commit before it, the update runs in backward. The unit's reduction proves that every rank has published the unit's
      // gradients. Reads after that publication are excluded below.
      if (u.unreduced != kNone) return fail(wrong(n, fmt::format("runs before the gradients of {} are reduced", name(u.unreduced))));
      if (!before(u.last_reduced, n)) {
        return fail(wrong(n, fmt::format("has neither a commit nor {} before it: other ranks may still read the rows that it would write",
                                         name(u.last_reduced))));
      }
      SHOAL_OK(after(u.last_reader, n));
      // Another rank's publication proves only that the rank has come to its reduce_scatter. The rank may still run a later node that reads
      // the unit.
      if (u.last_reader != kNone && u.last_reader != u.last_reduced && !before(u.last_reader, node(u.last_reduced))) {
        return fail(wrong(n, fmt::format("has no commit before it, and {} reads the unit after {}: other ranks may still read it",
                                         name(u.last_reader), name(u.last_reduced))));
      }
    }
    u.updated = n.id;
    return {};
  }

  Result<void> host_copy(const Node& n, Unit& u) {
    const bool fetch = n.op == Op::kFetch;
    auto& mine = fetch ? u.fetched : u.offloaded;
    if (mine != kNone) return fail(wrong(n, fmt::format("copies again what {} did", name(mine))));
    if (fetch && u.updated != kNone) return fail(wrong(n, fmt::format("runs after {}, which needs it", name(u.updated))));
    if (!fetch) {
      if (u.updated == kNone) return fail(wrong(n, "has no update before it"));
      if (u.fetched == kNone) return fail(wrong(n, "has no fetch before it"));
      SHOAL_OK(after(u.updated, n));
    }
    mine = n.id;
    return {};
  }

  const StepGraph& graph_;
  Order order_;  // order of the visited nodes
  std::vector<Unit> units_;
  std::map<std::int32_t, std::int32_t> losses_;  // by micro-batch: the node of the loss
  std::int32_t commit_ = kNone, clipped_ = kNone;
};

}  // namespace

std::int32_t input_of(const StepGraph& graph, const Node& node) {
  for (const auto& e : node.after) {
    const Op op = graph.nodes()[static_cast<std::size_t>(e.from)].op;
    if (e.kind == EdgeKind::kData && (op == Op::kForward || op == Op::kBackward)) return e.from;
  }
  return kNone;
}

std::int32_t num_micro_batches(const StepGraph& graph) {
  std::int32_t out = 1;
  for (const auto& n : graph.nodes()) out = std::max(out, n.micro + 1);
  return out;
}

bool has(const StepGraph& graph, Op op, std::int32_t unit, std::int32_t micro) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& n) { return n.op == op && n.micro == micro && is_for(n, unit); });
}

Result<void> check_runnable(const StepGraph& graph) { return Checker(graph).check(); }

}  // namespace shoal::fsdp
