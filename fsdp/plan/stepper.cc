#include "fsdp/plan/stepper.h"

namespace shoal::fsdp {

namespace {
constexpr double kForget = 0.3;  // weight of the latest step in an estimate
}

void Stepper::replan(PlanOptions options) {
  options_ = std::move(options);
  plan_.reset();
  following_ = false;
  last_measured_.clear();
}

void Stepper::begin_step() {
  end_step();
  began_ = clock_.now();
  in_step_ = true;
  following_ = plan_.has_value();
  trace_.clear();
  passed_ = 0;
  computing_ = -1;
  seen_.clear();
  if (plan_) measured_.assign(plan_->graph().nodes().size(), Span());
}

void Stepper::end_step() {
  if (!in_step_) return;
  in_step_ = false;
  ++steps_;
  if (following_ && passed_ == plan_->boundaries().size()) {
    last_measured_ = measured_;
    planned_from_ = estimate_;
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      if (measured_[i].seen()) estimate_[i] += kForget * (measured_[i].end - measured_[i].start - estimate_[i]);
    }
    return;
  }
  if (passed_ == 0) return;  // nothing ran: no step to learn from
  if (plan_) ++detours_;
  plan_ = Plan::from_trace(units_, trace_, options_);
  estimate_ = planned_from_ = plan_->durations();
  last_measured_.clear();
  index_nodes();
}

void Stepper::index_nodes() {
  nodes_of_.clear();
  for (const auto& n : plan_->graph().nodes()) {
    if (lane_of(n.op) != Lane::kCompute || n.op == Op::kOptimizerUpdate) nodes_of_[{n.op, n.unit, n.backward}].push_back(n.id);
  }
}

void Stepper::end_compute(double at) {
  if (computing_ >= 0) measured_[static_cast<std::size_t>(computing_)].end = at;
  computing_ = -1;
}

const std::vector<std::int32_t>& Stepper::boundary(Boundary b) {
  if (!in_step_) return nothing_;
  const double at = since(clock_.now());
  trace_.push_back({b, {}, b.unit, b.backward, {at, at}});
  const std::size_t index = passed_++;
  if (!following_) return nothing_;
  end_compute(at);
  if (index >= plan_->boundaries().size() || !(plan_->boundaries()[index] == b)) {
    following_ = false;
    return nothing_;
  }
  computing_ = plan_->compute_after(index);
  if (computing_ >= 0) measured_[static_cast<std::size_t>(computing_)] = {at, at};
  return plan_->at(index);
}

void Stepper::ran(Op op, std::int32_t unit, bool backward, runtime::TimePoint start, runtime::TimePoint end) {
  if (!in_step_) return;
  const Span span{since(start), since(end)};
  trace_.push_back({{}, op, unit, backward, span});
  if (!following_) return;
  const auto nodes = nodes_of_.find({op, unit, backward});
  if (nodes == nodes_of_.end()) return;
  auto& next = seen_[{op, unit, backward}];
  if (next < nodes->second.size()) measured_[static_cast<std::size_t>(nodes->second[next++])] = span;
}

std::vector<Span> Stepper::planned() const { return plan_ ? plan_->graph().schedule(planned_from_) : std::vector<Span>(); }

}  // namespace shoal::fsdp
