#include "fsdp/graph/trace.h"

#include <algorithm>
#include <map>

#include "runtime/core/check.h"

namespace shoal::fsdp {

namespace {

// Compute between a boundary and the next.
struct Segment {
  std::size_t boundary = 0;  // the boundary before it
  std::int32_t unit = 0;
  bool backward = false;
  double duration = 0;
  bool keep = true;
  std::int32_t part = 0;
  std::int32_t node = -1;
};

std::int32_t must(Result<std::int32_t> id) {
  SHOAL_CHECK(id.has_value(), "a traced step does not make a valid graph");
  return *id;
}

std::vector<Segment> segments_of(const std::vector<TraceEvent>& trace, double min_part) {
  std::vector<Segment> out;
  std::vector<std::pair<std::int32_t, bool>> stack;  // units with an open forward or backward
  std::size_t index = 0;
  std::vector<double> times;   // times of the boundaries
  std::vector<double> inside;  // inline communication after each boundary
  for (const auto& e : trace) {
    if (e.boundary) {
      times.push_back(e.span.start);
      inside.push_back(0);
    } else if (!inside.empty()) {
      inside.back() += e.span.end - e.span.start;
    }
  }
  for (const auto& e : trace) {
    if (!e.boundary) continue;
    const Boundary& b = *e.boundary;
    if (b.begin) {
      stack.emplace_back(b.unit, b.backward);
    } else {
      const auto it = std::find(stack.rbegin(), stack.rend(), std::pair{b.unit, b.backward});
      if (it != stack.rend()) stack.erase(std::next(it).base());
    }
    if (!stack.empty()) {
      const double until = index + 1 < times.size() ? times[index + 1] : times[index];
      out.push_back({index, stack.back().first, stack.back().second, std::max(0.0, until - times[index] - inside[index]), true, 0, -1});
    }
    ++index;
  }
  // Between its children a unit mostly passes one output on: it gets a node only when it computes.
  const double whole = times.empty() ? 0 : times.back() - times.front();
  std::map<std::pair<std::int32_t, bool>, std::vector<std::size_t>> of_unit;
  for (std::size_t i = 0; i < out.size(); ++i) of_unit[{out[i].unit, out[i].backward}].push_back(i);
  for (const auto& [unit, list] : of_unit) {
    for (std::size_t k = 1; k + 1 < list.size(); ++k) out[list[k]].keep = out[list[k]].duration >= min_part * whole;
    std::int32_t part = 0;
    for (const auto i : list) {
      if (out[i].keep) out[i].part = part++;
    }
  }
  return out;
}

}  // namespace

std::vector<TraceEvent> expected_trace(const std::vector<Boundary>& forward, const std::vector<bool>& reshard_after_forward) {
  std::vector<TraceEvent> out;
  double now = 0;
  const auto add = [&](Op op, std::int32_t unit, bool backward) {
    out.push_back({{}, op, unit, backward, {now, now + 1}});
    now += 1;
  };
  const auto pass = [&](Boundary b) {
    const bool kept = !reshard_after_forward[static_cast<std::size_t>(b.unit)];
    if (b.begin && !(b.backward && kept)) add(Op::kUnshard, b.unit, b.backward);
    out.push_back({b, {}, b.unit, b.backward, {now, now}});
    now += 1;
    if (b.begin) return;
    if (b.backward) add(Op::kReduceScatter, b.unit, true);
    if (b.backward || !kept) add(Op::kReshard, b.unit, b.backward);
  };
  for (const auto& b : forward) pass({false, b.begin, b.unit});
  for (auto b = forward.rbegin(); b != forward.rend(); ++b) pass({true, !b->begin, b->unit});
  add(Op::kOptimizerUpdate, -1, false);
  return out;
}

Plan Plan::from_trace(const std::vector<std::string>& units, const std::vector<TraceEvent>& trace, const PlanOptions& options) {
  Plan plan(units);
  auto segments = segments_of(trace, options.min_part);
  for (const auto& e : trace) {
    if (e.boundary) plan.boundaries_.push_back(*e.boundary);
  }
  plan.at_.resize(plan.boundaries_.size());
  plan.compute_after_.assign(plan.boundaries_.size(), -1);

  // Communication nodes and updates in backward, with their boundary. An unshard ran before the boundary that it serves.
  struct Communication {
    TraceEvent event;
    std::size_t boundary;
  };
  std::vector<Communication> communications;
  std::vector<TraceEvent> updates;
  std::size_t passed = 0;
  for (const auto& e : trace) {
    if (e.boundary) {
      ++passed;
    } else if ((e.op == Op::kOptimizerUpdate && e.unit < 0) || e.op == Op::kClipNorm || e.op == Op::kCommit) {
      updates.push_back(e);
    } else {
      communications.push_back({e, e.op == Op::kUnshard ? passed : passed == 0 ? 0 : passed - 1});
    }
  }

  // The kept segments in order: the compute lane.
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].keep) kept.push_back(i);
  }
  // An unshard stands before the first kept segment of its unit at or after its boundary, until a pass moves it.
  std::multimap<std::size_t, std::size_t> unshards;  // kept segment to communication
  for (std::size_t c = 0; c < communications.size(); ++c) {
    const auto& [event, boundary] = communications[c];
    if (event.op != Op::kUnshard) continue;
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const auto& s = segments[kept[k]];
      if (s.boundary < boundary || s.unit != event.unit) continue;
      unshards.emplace(k, c);
      break;
    }
  }

  StepGraph traced(units);
  std::vector<double> durations;        // by node of `traced`
  std::vector<std::size_t> boundaries;  // by node of `traced`; for a compute node, the boundary before it
  std::map<std::pair<std::int32_t, bool>, std::int32_t> last_compute, unsharded, resharded;  // by unit and pass
  std::map<std::int32_t, std::int32_t> reduced;
  std::int32_t previous = -1;
  const auto add = [&](Op op, std::int32_t unit, std::vector<Edge> after, double duration, std::size_t boundary, std::int32_t part = 0,
                       bool backward = false) {
    const auto id = must(traced.add(op, unit, std::move(after), part, backward));
    durations.push_back(duration);
    boundaries.push_back(boundary);
    return id;
  };
  std::size_t next_communication = 0;
  const auto add_other_communications = [&](std::size_t up_to_boundary) {
    for (; next_communication < communications.size() && communications[next_communication].boundary < up_to_boundary;
         ++next_communication) {
      const auto& [event, boundary] = communications[next_communication];
      if (event.op == Op::kUnshard) continue;
      std::vector<Edge> after;
      if (const auto it = last_compute.find({event.unit, event.backward}); it != last_compute.end() && event.op != Op::kOptimizerUpdate)
        after.push_back({it->second, EdgeKind::kData});
      if (const auto it = reduced.find(event.unit); it != reduced.end() && event.op == Op::kOptimizerUpdate)
        after.push_back({it->second, EdgeKind::kData});
      const auto id = add(event.op, event.unit, std::move(after), event.span.end - event.span.start, boundary, 0, event.backward);
      if (event.op == Op::kReshard) resharded[{event.unit, event.backward}] = id;
      if (event.op == Op::kReduceScatter) reduced[event.unit] = id;
    }
  };
  for (std::size_t k = 0; k < kept.size(); ++k) {
    Segment& s = segments[kept[k]];
    add_other_communications(s.boundary + 1);
    for (auto [it, end] = unshards.equal_range(k); it != end; ++it) {
      const auto& event = communications[it->second].event;
      std::vector<Edge> after;
      if (const auto before = resharded.find({event.unit, false}); before != resharded.end())
        after.push_back({before->second, EdgeKind::kData});
      unsharded[{event.unit, event.backward}] =
          add(Op::kUnshard, event.unit, std::move(after), event.span.end - event.span.start, s.boundary, 0, event.backward);
    }
    std::vector<Edge> after;
    if (const auto it = unsharded.find({s.unit, s.backward}); it != unsharded.end()) after.push_back({it->second, EdgeKind::kData});
    if (previous >= 0) after.push_back({previous, EdgeKind::kData});
    s.node = add(s.backward ? Op::kBackward : Op::kForward, s.unit, std::move(after), s.duration, s.boundary, s.part, s.backward);
    last_compute[{s.unit, s.backward}] = s.node;
    previous = s.node;
  }
  add_other_communications(plan.boundaries_.size() + 1);
  for (const auto& e : updates) {
    std::vector<Edge> after;
    for (const auto& [unit, node] : reduced) {
      if (e.unit < 0 || e.unit == unit) after.push_back({node, EdgeKind::kData});
    }
    if (previous >= 0) after.push_back({previous, EdgeKind::kOrder});
    previous = add(e.op, e.unit, std::move(after), e.span.end - e.span.start, 0);
  }
  auto rewritten = prefetch(traced, options.prefetch);
  SHOAL_CHECK(rewritten.has_value(), "a traced step cannot be planned");
  plan.take(std::move(*rewritten), durations, boundaries);
  return plan;
}

void Plan::take(Rewritten passed, const std::vector<double>& durations, const std::vector<std::size_t>& boundaries) {
  graph_ = std::move(passed.graph);
  std::vector<std::int32_t> ahead;  // unshards that are issued when the next compute node begins
  for (const auto& n : graph_.nodes()) {
    const auto was = static_cast<std::size_t>(passed.from[static_cast<std::size_t>(n.id)]);
    durations_.push_back(durations[was]);
    const std::size_t boundary = boundaries[was];
    if (n.op == Op::kUnshard) {
      ahead.push_back(n.id);
    } else if (n.op == Op::kForward || n.op == Op::kBackward) {
      compute_after_[boundary] = n.id;
      at_[boundary].insert(at_[boundary].end(), ahead.begin(), ahead.end());
      ahead.clear();
    } else if (n.op == Op::kOptimizerUpdate || n.op == Op::kClipNorm || n.op == Op::kCommit) {
      optimizer_.push_back(n.id);
    } else {
      at_[boundary].push_back(n.id);
    }
  }
}

}  // namespace shoal::fsdp
