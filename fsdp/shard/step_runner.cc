#include "fsdp/shard/step_runner.h"

#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/runnable.h"
#include "runtime/loop/side_thread.h"

namespace shoal::fsdp {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);  // how often a waiting compute lane asks about signals
constexpr double kForget = 0.3;                        // weight of the latest step in an estimate

bool has(const StepGraph& graph, Op op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& n) { return n.op == op; });
}

}  // namespace

Result<std::unique_ptr<StepRunner>> StepRunner::make(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options) {
  SHOAL_OK(check_runnable(graph));
  std::vector<std::string> names;
  for (const auto& u : model->units()) names.push_back(u->name());
  if (names != graph.units()) {
    return fail(invalid_argument(
                    fmt::format("the step graph has the units {}, the model {}", fmt::join(graph.units(), ", "), fmt::join(names, ", ")))
                    .with_reason("BadGraph"));
  }
  for (const auto& n : graph.nodes()) {
    if (n.op != Op::kOptimizerUpdate) continue;
    for (const auto& p : model->units()[static_cast<std::size_t>(n.unit)]->layout().placed()) {
      if (p.parameter.dtype == DType::kFloat32 || !p.parameter.requires_grad) continue;
      return fail(unimplemented(fmt::format("{} (node {}): parameter {} is {}, and AdamW updates float32", graph.label(n), n.id,
                                            p.parameter.name, dtype_name(p.parameter.dtype)))
                      .with_reason("BadGraph"));
    }
  }
  return std::unique_ptr<StepRunner>(new StepRunner(std::move(model), std::move(graph), std::move(options)));
}

StepRunner::StepRunner(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options)
    : model_(std::move(model)),
      graph_(std::move(graph)),
      options_(std::move(options)),
      commits_(has(graph_, Op::kCommit)),
      rows_(model_->units().size()),
      gradients_(model_->units().size()) {
  for (std::size_t u = 0; u < rows_.size(); ++u) rows_[u].resize(model_->units()[u]->layout().placed().size());
}

double StepRunner::now() const { return std::chrono::duration<double, std::micro>(model_->stepper().now() - began_).count(); }

Result<void> StepRunner::run(StepProgram& program) {
  if (lost_) return fail(*lost_);
  auto done = run_lanes(program);
  if (!done) {
    lost_ = std::move(done).error().in(fmt::format("rank {}", rank())).in(fmt::format("step {}", steps_));
    // A peer that died is on the board already, with its own cause. The board's word comes first: others shall hear of this, and not of
    // a step that is started over.
    if (lost_->reason() != "ActorDied") model_->mark_gone(fmt::format("its step {} failed: {}", steps_, lost_->message()));
    model_->reset();
    return fail(*lost_);
  }
  ++steps_;
  return {};
}

Result<void> StepRunner::run_lanes(StepProgram& program) {
  planned_ = estimate_.empty() ? std::vector<Span>() : graph_.schedule(estimate_);
  measured_.assign(graph_.nodes().size(), Span());
  progress_.emplace(graph_);
  failure_.reset();
  stopping_ = false;
  began_ = model_->stepper().now();
  SHOAL_OK(model_->enter(commits_));
  model_->interrupt_by([this] { return stopping_.load(); });
  {
    const runtime::SideThread communication([this] { run_lane(Lane::kCommunication, [this](const Node& n) { return communicate(n); }); });
    run_lane(Lane::kCompute, [&](const Node& n) { return compute(n, program); });
    // The last nodes of a step may be the other lane's.
    std::unique_lock lock(mutex_);
    while (!failure_ && !progress_->finished(Lane::kCommunication)) wait_for_other_lane(lock, Lane::kCompute);
    stopping_ = failure_.has_value();
  }
  model_->interrupt_by({});
  tell_released(program);
  if (failure_) return fail(*std::move(failure_));
  model_->end_step();
  estimate_.resize(measured_.size(), -1);
  for (std::size_t i = 0; i < measured_.size(); ++i) {
    const double took = measured_[i].end - measured_[i].start;
    estimate_[i] = estimate_[i] < 0 ? took : estimate_[i] + kForget * (took - estimate_[i]);
  }
  return {};
}

// False when a signal ended the wait.
bool StepRunner::wait_for_other_lane(std::unique_lock<std::mutex>& lock, Lane lane) {
  if (lane != Lane::kCompute) return changed_.wait(lock), true;
  if (changed_.wait_for(lock, kLook) == std::cv_status::no_timeout || !options_.interrupted) return true;
  lock.unlock();
  const bool interrupted = options_.interrupted();
  lock.lock();
  if (!interrupted) return true;
  if (!failure_) failure_ = cancelled("interrupted by a signal").with_reason("Interrupted");
  stopping_ = true;
  changed_.notify_all();
  return false;
}

void StepRunner::run_lane(Lane lane, const Perform& perform) {
  std::unique_lock lock(mutex_);
  while (!failure_ && !progress_->finished(lane)) {
    const auto next = progress_->next(lane);
    if (!next) {
      wait_for_other_lane(lock, lane);
      continue;
    }
    const Node& node = graph_.nodes()[static_cast<std::size_t>(*next)];
    Span& span = measured_[static_cast<std::size_t>(*next)];
    progress_->begin(*next);
    span.start = now();
    changed_.notify_all();
    lock.unlock();
    auto done = perform(node);
    lock.lock();
    span.end = now();
    if (done) {
      progress_->end(*next);
    } else if (!failure_) {
      failure_ = std::move(done).error().in(fmt::format("node {} {}", node.id, graph_.label(node)));
      stopping_ = true;
    }
    changed_.notify_all();
  }
}

// ---- the compute lane ----------------------------------------------------------------------------------------------------------------

void StepRunner::tell_released(StepProgram& program) {
  std::vector<std::size_t> released;
  {
    const std::lock_guard lock(mutex_);
    released.swap(released_);
  }
  for (const auto unit : released) program.released(unit);
}

Result<void> StepRunner::compute(const Node& node, StepProgram& program) {
  tell_released(program);
  const auto unit = static_cast<std::size_t>(node.unit);
  switch (node.op) {
    case Op::kForward:
      if (node.unit >= 0) model_->at(Doing::kForward, unit);
      return program.forward(node, input_of(graph_, node));
    case Op::kBackward: {
      model_->at(Doing::kBackward, unit);
      SHOAL_TRY(auto gradients, program.backward(node, input_of(graph_, node)));
      if (gradients.size() != rows_[unit].size()) return fail(internal("a backward returned the wrong number of gradients"));
      const std::lock_guard lock(mutex_);
      gradients_[unit] = std::move(gradients);
      return {};
    }
    case Op::kOptimizerUpdate:
      model_->at(Doing::kOptimizer, unit);
      update(unit);
      return {};
    default:
      return fail(internal("a node on the wrong lane"));
  }
}

void StepRunner::update(std::size_t unit) {
  const auto& sharded = *model_->units()[unit];
  for (std::size_t i = 0; i < rows_[unit].size(); ++i) {
    Rows& r = rows_[unit][i];
    const std::size_t numel = r.gradient.size() / sizeof(float);
    if (!r.present) continue;
    ++r.updates;
    if (numel == 0) continue;
    r.m.resize(numel);
    r.v.resize(numel);
    adam(options_.optimizer, r.updates, reinterpret_cast<float*>(sharded.own(i)), reinterpret_cast<const float*>(r.gradient.data()),
         r.m.data(), r.v.data(), numel);
  }
}

// ---- the communication lane ----------------------------------------------------------------------------------------------------------

Result<void> StepRunner::communicate(const Node& node) {
  const auto unit = static_cast<std::size_t>(node.unit);
  switch (node.op) {
    case Op::kUnshard:
      return model_->unshard(unit, node.backward);
    case Op::kReshard:
      model_->reshard(unit, node.backward);
      return {};
    case Op::kReduceScatter:
      return reduce_scatter(unit);
    case Op::kCommit:
      return model_->finish_backward(true);
    default:
      return fail(internal("a node on the wrong lane"));
  }
}

Result<void> StepRunner::reduce_scatter(std::size_t unit) {
  StepProgram::Gradients whole;
  {
    const std::lock_guard lock(mutex_);
    whole = gradients_[unit];
  }
  const auto& sharded = *model_->units()[unit];
  const Layout& layout = sharded.layout();
  std::vector<Reducer::Gradient> work(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Rows& r = rows_[unit][i];
    r.gradient.resize(sharded.own_bytes(i));
    work[i] = {whole[i], r.gradient.empty() ? nullptr : r.gradient.data(), false, layout.placed()[i].compute_dtype()};
  }
  SHOAL_OK(model_->reduce_scatter(unit, work, {1.0 / sharded.grid().world_size}));
  for (const auto& reduced : model_->take_reduced()) {
    for (std::size_t i = 0; i < reduced.present.size(); ++i) rows_[reduced.unit][i].present = reduced.present[i];
  }
  const std::lock_guard lock(mutex_);
  released_.push_back(unit);
  return {};
}

}  // namespace shoal::fsdp
