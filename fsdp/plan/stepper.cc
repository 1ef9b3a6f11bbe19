#include "fsdp/plan/stepper.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace shoal::fsdp {

namespace {
constexpr double kForget = 0.3;  // weight of the latest step in an estimate
}

void Stepper::replan(PlanOptions options) {
  options_ = std::move(options);
  plan_.reset();
  measured_.clear();
}

void Stepper::begin_step() {
  end_step();
  began_ = clock_.now();
  in_step_ = true;
  trace_.clear();
}

void Stepper::end_step() {
  if (!in_step_) return;
  in_step_ = false;
  ++steps_;
  if (as_planned()) return measure();
  if (std::none_of(trace_.begin(), trace_.end(), [](const TraceEvent& e) { return e.boundary.has_value(); })) return;  // nothing ran
  if (plan_) ++detours_;
  plan_ = Plan::from_trace(units_, trace_, options_);
  estimate_ = planned_from_ = plan_->durations();
  measured_.clear();
}

void Stepper::passed(Boundary b) {
  if (!in_step_) return;
  const double at = since(clock_.now());
  trace_.push_back({b, {}, b.unit, b.backward, {at, at}});
}

void Stepper::ran(Op op, std::int32_t unit, bool backward, runtime::TimePoint start, runtime::TimePoint end) {
  if (in_step_) trace_.push_back({{}, op, unit, backward, {since(start), since(end)}});
}

// True if the step has passed exactly the plan's boundaries, in order.
bool Stepper::as_planned() const {
  if (!plan_) return false;
  const auto& expected = plan_->boundaries();
  std::size_t next = 0;
  for (const auto& e : trace_) {
    if (!e.boundary) continue;
    if (next == expected.size() || !(expected[next++] == *e.boundary)) return false;
  }
  return next == expected.size();
}

// Takes times of the plan's nodes from the step's trace.
void Stepper::measure() {
  std::map<std::tuple<Op, std::int32_t, bool>, std::vector<std::int32_t>> nodes;  // nodes not measured yet, the next one last
  const auto& all = plan_->graph().nodes();
  for (auto n = all.rbegin(); n != all.rend(); ++n) {
    if (lane_of(n->op) != Lane::kCompute || n->op == Op::kOptimizerUpdate) nodes[{n->op, n->unit, n->backward}].push_back(n->id);
  }
  measured_.assign(all.size(), Span());
  measured_from_ = began_;
  measured_until_ = clock_.now();
  std::int32_t computing = -1;
  std::size_t boundary = 0;
  for (const auto& e : trace_) {
    if (e.boundary) {
      if (computing >= 0) measured_[static_cast<std::size_t>(computing)].end = e.span.start;
      computing = plan_->compute_after(boundary++);
      if (computing >= 0) measured_[static_cast<std::size_t>(computing)] = e.span;
      continue;
    }
    const auto found = nodes.find({e.op, e.unit, e.backward});
    if (found == nodes.end() || found->second.empty()) continue;
    measured_[static_cast<std::size_t>(found->second.back())] = e.span;
    found->second.pop_back();
  }
  planned_from_ = estimate_;
  for (std::size_t i = 0; i < measured_.size(); ++i) {
    if (measured_[i].seen()) estimate_[i] += kForget * (measured_[i].end - measured_[i].start - estimate_[i]);
  }
}

std::vector<Span> Stepper::planned() const { return plan_ ? plan_->graph().schedule(planned_from_) : std::vector<Span>(); }

}  // namespace shoal::fsdp
