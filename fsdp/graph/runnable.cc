#include "fsdp/graph/runnable.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr std::int32_t kNone = -1;

class Checker {
 public:
  explicit Checker(const StepGraph& graph) : graph_(graph), units_(graph.units().size()) {}

  Result<void> check() {
    for (const auto& n : graph_.nodes()) {
      order(n);
      SHOAL_OK(visit(n));
    }
    for (const auto& u : units_) {
      if (u.unshard != kNone) return fail(wrong(node(u.unshard), "has no reshard: its lease would outlive the step"));
      if (u.backward != kNone && u.reduced == kNone)
        return fail(wrong(node(u.backward), "has no reduce_scatter: its gradients would be lost"));
    }
    if (loss_ == kNone)
      return fail(invalid_argument("this step graph has no loss: there would be nothing to wait for").with_reason("BadGraph"));
    return {};
  }

 private:
  struct Unit {
    std::int32_t unshard = kNone;  // of the lease that is held
    std::int32_t reshard = kNone;  // that ended the last one
    std::vector<std::int32_t> readers;
    std::int32_t forward = kNone, backward = kNone, reduced = kNone, updated = kNone;
  };
  // Per lane, the last node that has ended for certain.
  using Ended = std::array<std::int32_t, kNumLanes>;

  const Node& node(std::int32_t id) const { return graph_.nodes()[static_cast<std::size_t>(id)]; }
  std::string name(std::int32_t id) const { return fmt::format("{} (node {})", graph_.label(node(id)), id); }
  Error wrong(const Node& n, const std::string& what) const {
    return invalid_argument(fmt::format("{} {}", name(n.id), what)).with_reason("BadGraph");
  }

  void order(const Node& n) {
    Ended ended;
    ended.fill(kNone);
    const auto follow = [&](std::int32_t before) {
      for (std::size_t lane = 0; lane < kNumLanes; ++lane)
        ended[lane] = std::max(ended[lane], ended_[static_cast<std::size_t>(before)][lane]);
      auto& lane = ended[static_cast<std::size_t>(lane_of(node(before).op))];
      lane = std::max(lane, before);
    };
    for (const auto& e : n.after) follow(e.from);
    auto& last = last_of_lane_[static_cast<std::size_t>(lane_of(n.op))];
    if (last != kNone) follow(last);
    last = n.id;
    ended_.push_back(ended);
  }
  bool before(std::int32_t a, const Node& b) const {
    return a <= ended_[static_cast<std::size_t>(b.id)][static_cast<std::size_t>(lane_of(node(a).op))];
  }

  Result<void> visit(const Node& n) {
    if (n.part != 0) return fail(wrong(n, "is a part of a unit: only a traced step has parts"));
    const bool whole_model = n.op == Op::kCommit || (n.op == Op::kForward && n.unit < 0);
    if (n.unit < 0 && !whole_model) return fail(wrong(n, "needs a unit"));
    if (n.unit >= 0 && n.op == Op::kCommit) return fail(wrong(n, "is for all units at once"));
    if (commit_ != kNone && n.op != Op::kOptimizerUpdate && n.op != Op::kCommit)
      return fail(wrong(n, "comes after the commit, when parameters may be written"));
    switch (n.op) {
      case Op::kUnshard:
        return unshard(n, units_[static_cast<std::size_t>(n.unit)]);
      case Op::kReshard:
        return reshard(n, units_[static_cast<std::size_t>(n.unit)]);
      case Op::kForward:
        return n.unit < 0 ? loss(n) : forward(n, units_[static_cast<std::size_t>(n.unit)]);
      case Op::kBackward:
        return backward(n, units_[static_cast<std::size_t>(n.unit)]);
      case Op::kReduceScatter:
        return reduce_scatter(n, units_[static_cast<std::size_t>(n.unit)]);
      case Op::kCommit:
        return commit(n);
      case Op::kOptimizerUpdate:
        return update(n, units_[static_cast<std::size_t>(n.unit)]);
      default:
        return fail(
            unimplemented(fmt::format("{} cannot be run: {} is not in this release", name(n.id), op_name(n.op))).with_reason("BadGraph"));
    }
  }

  Result<void> unshard(const Node& n, Unit& u) {
    if (u.unshard != kNone) return fail(wrong(n, fmt::format("comes while {} holds the lease: reshard before", name(u.unshard))));
    u.unshard = n.id;
    u.readers.clear();
    return {};
  }

  Result<void> reshard(const Node& n, Unit& u) {
    if (u.unshard == kNone) return fail(wrong(n, "has no unshard before it"));
    for (const auto reader : u.readers) {
      if (!before(reader, n)) return fail(wrong(n, fmt::format("may end the lease while {} reads: let it come after that", name(reader))));
    }
    u.reshard = n.id;
    u.unshard = kNone;
    return {};
  }

  Result<void> read(const Node& n, Unit& u) {
    if (u.unshard == kNone && u.reshard != kNone) return fail(wrong(n, fmt::format("comes after {}: unshard again", name(u.reshard))));
    if (u.unshard == kNone) return fail(wrong(n, "has no unshard before it"));
    if (!before(u.unshard, n)) return fail(wrong(n, fmt::format("does not wait for {}: let it come after that", name(u.unshard))));
    u.readers.push_back(n.id);
    return {};
  }

  // The one node whose output it reads.
  Result<std::int32_t> input(const Node& n) const {
    std::int32_t found = kNone;
    for (const auto& e : n.after) {
      if (e.kind != EdgeKind::kData || (node(e.from).op != Op::kForward && node(e.from).op != Op::kBackward)) continue;
      if (found != kNone) return fail(wrong(n, fmt::format("reads two outputs, of {} and {}", name(found), name(e.from))));
      found = e.from;
    }
    return found;
  }

  Result<void> forward(const Node& n, Unit& u) {
    if (u.forward != kNone) return fail(wrong(n, fmt::format("is a second forward of the unit, after {}", name(u.forward))));
    SHOAL_OK(read(n, u));
    SHOAL_TRY(const auto from, input(n));
    if (from != kNone && (node(from).op != Op::kForward || node(from).unit < 0))
      return fail(wrong(n, fmt::format("cannot read what {} makes", name(from))));
    u.forward = n.id;
    return {};
  }

  Result<void> loss(const Node& n) {
    if (loss_ != kNone) return fail(wrong(n, fmt::format("is a second loss, after {}", name(loss_))));
    SHOAL_TRY(const auto from, input(n));
    if (from == kNone || node(from).op != Op::kForward) return fail(wrong(n, "reads no unit's output"));
    loss_ = n.id;
    return {};
  }

  Result<void> backward(const Node& n, Unit& u) {
    if (u.forward == kNone) return fail(wrong(n, "has no forward before it"));
    if (u.backward != kNone) return fail(wrong(n, fmt::format("is a second backward of the unit, after {}", name(u.backward))));
    SHOAL_OK(read(n, u));
    SHOAL_TRY(const auto from, input(n));
    if (from == kNone) return fail(wrong(n, "reads no gradient: neither the loss's nor another backward's"));
    // The forward that read this unit's output: its gradient is that output's.
    const std::int32_t reader = node(from).op == Op::kBackward ? units_[static_cast<std::size_t>(node(from).unit)].forward : from;
    if (node(from).op == Op::kForward && from != loss_) return fail(wrong(n, fmt::format("cannot read a gradient from {}", name(from))));
    if (input_of(graph_, node(reader)) != u.forward) {
      return fail(wrong(
          n, fmt::format("reads the gradient of {}, but {} did not read the output of {}", name(from), name(reader), name(u.forward))));
    }
    u.backward = n.id;
    return {};
  }

  Result<void> reduce_scatter(const Node& n, Unit& u) {
    if (u.backward == kNone) return fail(wrong(n, "has no backward before it"));
    if (u.reduced != kNone) return fail(wrong(n, fmt::format("reduces again what {} did", name(u.reduced))));
    if (!before(u.backward, n)) return fail(wrong(n, fmt::format("does not wait for {}: let it come after that", name(u.backward))));
    u.reduced = n.id;
    return {};
  }

  Result<void> commit(const Node& n) {
    if (commit_ != kNone) return fail(wrong(n, fmt::format("is a second commit, after {}", name(commit_))));
    for (const auto& u : units_) {
      for (const auto id : {u.forward, u.backward}) {
        if (id != kNone && !before(id, n)) return fail(wrong(n, fmt::format("does not wait for {}: let it come after that", name(id))));
      }
      if (u.unshard != kNone) return fail(wrong(n, fmt::format("comes while {} holds the lease: reshard before", name(u.unshard))));
      if (u.backward != kNone && u.reduced == kNone)
        return fail(wrong(n, fmt::format("comes before the gradients of {} are reduced", name(u.backward))));
    }
    commit_ = n.id;
    return {};
  }

  Result<void> update(const Node& n, Unit& u) {
    if (u.reduced == kNone) return fail(wrong(n, "has no reduce_scatter before it"));
    if (u.updated != kNone) return fail(wrong(n, fmt::format("is a second update of the unit, after {}", name(u.updated))));
    if (commit_ == kNone) return fail(wrong(n, "has no commit before it: other ranks may still read what it would write"));
    if (!before(commit_, n)) return fail(wrong(n, fmt::format("does not wait for {}: let it come after that", name(commit_))));
    u.updated = n.id;
    return {};
  }

  const StepGraph& graph_;
  std::vector<Unit> units_;
  std::int32_t loss_ = kNone, commit_ = kNone;
  std::vector<Ended> ended_;  // before each node visited so far
  std::array<std::int32_t, kNumLanes> last_of_lane_{kNone, kNone, kNone};
};

}  // namespace

std::int32_t input_of(const StepGraph& graph, const Node& node) {
  for (const auto& e : node.after) {
    const Op op = graph.nodes()[static_cast<std::size_t>(e.from)].op;
    if (e.kind == EdgeKind::kData && (op == Op::kForward || op == Op::kBackward)) return e.from;
  }
  return kNone;
}

Result<void> check_runnable(const StepGraph& graph) { return Checker(graph).check(); }

}  // namespace shoal::fsdp
