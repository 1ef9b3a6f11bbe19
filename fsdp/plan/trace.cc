#include "fsdp/plan/trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/core/check.h"

namespace shoal::fsdp {

namespace {

// The compute between one boundary and the next.
struct Segment {
  std::size_t boundary = 0;  // number of the boundary before the segment
  std::int32_t unit = 0;
  bool backward = false;
  double duration = 0;
  bool keep = true;
  std::int32_t part = 0;
  bool begins = false;  // a forward or backward of its unit begins here, not one that resumes after a child's
};

std::int32_t must(Result<std::int32_t> id) {
  SHOAL_CHECK(id.has_value(), "a traced step does not make a valid graph");
  return *id;
}

// The segments that get a node, in order: the compute lane.
std::vector<Segment> segments_of(const std::vector<TraceEvent>& trace, double min_part) {
  std::vector<Segment> out;
  std::vector<std::pair<std::int32_t, bool>> stack;  // units with an open forward or backward
  std::size_t index = 0;
  std::vector<double> times;   // by boundary: its time
  std::vector<double> inside;  // by boundary: time of the communication from it to the next boundary
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
      out.push_back(
          {index, stack.back().first, stack.back().second, std::max(0.0, until - times[index] - inside[index]), true, 0, b.begin});
    }
    ++index;
  }
  // Between two of its children a unit mostly passes an output on. Only a longer compute there becomes a node.
  const double whole = times.empty() ? 0 : times.back() - times.front();
  std::map<std::pair<std::int32_t, bool>, std::vector<std::size_t>> of_unit;
  for (std::size_t i = 0; i < out.size(); ++i) of_unit[{out[i].unit, out[i].backward}].push_back(i);
  for (const auto& [unit, list] : of_unit) {
    for (std::size_t k = 1; k + 1 < list.size(); ++k) {
      Segment& s = out[list[k]];
      // With min_part above 1, the begin of a forward or backward gets a node: units of each micro-batch are unsharded ahead there.
      s.keep = s.duration >= min_part * whole || (min_part > 1 && s.begins);
    }
    std::int32_t part = 0;
    for (const auto i : list) {
      if (out[i].keep) out[i].part = part++;
    }
  }
  std::erase_if(out, [](const Segment& s) { return !s.keep; });
  return out;
}

// A communication node, or the update of a single unit in backward, with the index of the boundary at which it ran. An unshard has the next
// boundary's index, because it runs before that boundary.
struct Communication {
  TraceEvent event;
  std::size_t boundary = 0;
  double duration() const { return event.span.end - event.span.start; }
};

// All nodes of a traced step except its segments of computation.
struct Others {
  std::vector<Communication> communications;
  std::vector<TraceEvent> updates;  // the updates after backward
};

Others others_of(const std::vector<TraceEvent>& trace) {
  Others out;
  std::size_t passed = 0;
  for (const auto& e : trace) {
    if (e.boundary) {
      ++passed;
    } else if ((e.op == Op::kOptimizerUpdate && e.unit < 0) || e.op == Op::kClipNorm || e.op == Op::kCommit) {
      out.updates.push_back(e);
    } else {
      out.communications.push_back({e, e.op == Op::kUnshard ? passed : passed == 0 ? 0 : passed - 1});
    }
  }
  return out;
}

// By segment: the unshards before it. An unshard stands before the first segment of its unit at or after the unshard's boundary, until a
// pass moves it.
std::vector<std::vector<Communication>> unshards_of(const std::vector<Segment>& segments,
                                                    const std::vector<Communication>& communications) {
  std::vector<std::vector<Communication>> out(segments.size());
  for (const auto& c : communications) {
    if (c.event.op != Op::kUnshard) continue;
    const auto serves = [&](const Segment& s) { return s.boundary >= c.boundary && s.unit == c.event.unit; };
    const auto first = std::find_if(segments.begin(), segments.end(), serves);
    if (first != segments.end()) out[static_cast<std::size_t>(first - segments.begin())].push_back(c);
  }
  return out;
}

// The graph of a traced step, built in the order of its compute. A node depends on the latest node that made its data.
class TracedStep {
 public:
  explicit TracedStep(const std::vector<std::string>& units) : graph(units) {}

  void unshard(const Communication& c, std::size_t boundary) {
    std::vector<Edge> after;
    depend(after, resharded_, {c.event.unit, false});
    unsharded_[{c.event.unit, c.event.backward}] =
        add({Op::kUnshard, c.event.unit, c.event.backward}, std::move(after), c.duration(), boundary);
  }
  void compute(const Segment& s) {
    std::vector<Edge> after;
    depend(after, unsharded_, {s.unit, s.backward});
    if (previous_ >= 0) after.push_back({previous_, EdgeKind::kData});
    previous_ = add({s.backward ? Op::kBackward : Op::kForward, s.unit, s.backward, s.part}, std::move(after), s.duration, s.boundary);
    computed_[{s.unit, s.backward}] = previous_;
  }
  // A reshard, a reduction, or an update in backward.
  void communicate(const Communication& c) {
    const auto& event = c.event;
    std::vector<Edge> after;
    if (event.op == Op::kOptimizerUpdate) {
      if (const auto it = reduced_.find(event.unit); it != reduced_.end()) after.push_back({it->second, EdgeKind::kData});
    } else {
      depend(after, computed_, {event.unit, event.backward});
    }
    const auto id = add({event.op, event.unit, event.backward}, std::move(after), c.duration(), c.boundary);
    if (event.op == Op::kReshard) resharded_[{event.unit, event.backward}] = id;
    if (event.op == Op::kReduceScatter) reduced_[event.unit] = id;
  }
  void update(const TraceEvent& event) {
    std::vector<Edge> after;
    for (const auto& [unit, node] : reduced_) {
      if (event.unit < 0 || event.unit == unit) after.push_back({node, EdgeKind::kData});
    }
    if (previous_ >= 0) after.push_back({previous_, EdgeKind::kOrder});
    previous_ = add({event.op, event.unit}, std::move(after), event.span.end - event.span.start, 0);
  }

  StepGraph graph;
  // By node of `graph`: its duration.
  std::vector<double> durations;
  std::vector<std::size_t> boundaries;  // by node: for a compute node, the boundary before it

 private:
  struct What {
    Op op;
    std::int32_t unit;
    bool backward = false;
    std::int32_t part = 0;
  };
  using Nodes = std::map<std::pair<std::int32_t, bool>, std::int32_t>;  // by unit, and true for its backward

  std::int32_t add(What what, std::vector<Edge> after, double duration, std::size_t boundary) {
    durations.push_back(duration);
    boundaries.push_back(boundary);
    return must(graph.add(what.op, what.unit, std::move(after), what.part, what.backward));
  }
  static void depend(std::vector<Edge>& after, const Nodes& nodes, std::pair<std::int32_t, bool> on) {
    if (const auto it = nodes.find(on); it != nodes.end()) after.push_back({it->second, EdgeKind::kData});
  }

  Nodes unsharded_, computed_, resharded_;
  std::map<std::int32_t, std::int32_t> reduced_;  // by unit: the node of its latest reduction
  std::int32_t previous_ = -1;                    // the latest compute node or update
};

TracedStep traced_step(const std::vector<std::string>& units, const std::vector<TraceEvent>& trace, double min_part) {
  const auto segments = segments_of(trace, min_part);
  const auto others = others_of(trace);
  const auto unshards = unshards_of(segments, others.communications);
  TracedStep out(units);
  auto next = others.communications.begin();
  const auto communicate_until = [&](std::size_t boundary) {
    for (; next != others.communications.end() && next->boundary <= boundary; ++next) {
      if (next->event.op != Op::kUnshard) out.communicate(*next);
    }
  };
  for (std::size_t k = 0; k < segments.size(); ++k) {
    communicate_until(segments[k].boundary);
    for (const auto& c : unshards[k]) out.unshard(c, segments[k].boundary);
    out.compute(segments[k]);
  }
  communicate_until(trace.size());
  for (const auto& e : others.updates) out.update(e);
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
  const auto schedule = std::make_shared<Schedule>();
  for (const auto& e : trace) {
    if (e.boundary) schedule->boundaries.push_back(*e.boundary);
  }
  schedule->ahead.resize(schedule->boundaries.size());
  plan.compute_after_.assign(schedule->boundaries.size(), -1);
  const auto traced = traced_step(units, trace, options.min_part);
  auto rewritten = prefetch(traced.graph, options.prefetch);
  SHOAL_CHECK(rewritten.has_value(), "a traced step cannot be planned");
  plan.take(std::move(*rewritten), traced.durations, traced.boundaries, *schedule);
  plan.schedule_ = schedule;
  return plan;
}

void Plan::take(Rewritten passed, const std::vector<double>& durations, const std::vector<std::size_t>& boundaries, Schedule& schedule) {
  graph_ = std::move(passed.graph);
  std::vector<Schedule::Unshard> ahead;  // to be issued when the next compute node begins
  for (const auto& n : graph_.nodes()) {
    const auto was = static_cast<std::size_t>(passed.from[static_cast<std::size_t>(n.id)]);
    durations_.push_back(durations[was]);
    const std::size_t boundary = boundaries[was];
    if (n.op == Op::kUnshard) {
      ahead.push_back({n.unit, n.backward});
    } else if (n.op == Op::kForward || n.op == Op::kBackward) {
      compute_after_[boundary] = n.id;
      // A unit whose forward or backward begins here takes its lease there anyway.
      std::erase_if(ahead, [&](const auto& u) { return schedule.boundaries[boundary] == Boundary{u.backward, true, u.unit}; });
      schedule.ahead[boundary] = std::exchange(ahead, {});
    } else if (n.op == Op::kOptimizerUpdate || n.op == Op::kClipNorm || n.op == Op::kCommit) {
      optimizer_.push_back(n.id);
    }
  }
}

}  // namespace shoal::fsdp
