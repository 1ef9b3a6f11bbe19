#include "fsdp/runner/step_runner.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "fsdp/graph/runnable.h"
#include "runtime/loop/side_thread.h"

namespace shoal::fsdp {

using runtime::Activity;

namespace {

// The telemetry's key for the optimizer of this graph. Python's optimizers have other keys.
int optimizer_key(int first_unit) { return -2 - first_unit; }

constexpr auto kPollInterval = std::chrono::milliseconds(50);  // interval at which a waiting compute lane polls for signals
constexpr double kForget = 0.3;                                // weight of the latest step in an estimate

bool has_any(const StepGraph& graph, Op op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& n) { return n.op == op; });
}

// The activity that is counted while the compute lane runs this node, or waits for it.
std::optional<Activity> activity_at(const Node& node) {
  switch (node.op) {
    case Op::kForward:
      return Activity::kForward;
    case Op::kRecompute:
    case Op::kBackward:
      return Activity::kBackward;
    case Op::kOptimizerUpdate:
    case Op::kFetch:
    case Op::kOffload:
      return Activity::kOptimizer;
    case Op::kUnshard:
      return Activity::kGather;
    case Op::kReduceScatter:
    case Op::kAllReduce:
    case Op::kClipNorm:
      return Activity::kReduce;
    case Op::kCommit:
      return Activity::kWindow;
    case Op::kReshard:
      break;
  }
  return {};
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
  SHOAL_TRY(StepRows rows, StepRows::make(model->units(), graph, options.offload_folder));
  return std::unique_ptr<StepRunner>(new StepRunner(std::move(model), std::move(graph), std::move(options), std::move(rows)));
}

StepRunner::StepRunner(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options, StepRows rows)
    : model_(std::move(model)),
      graph_(std::move(graph)),
      options_(std::move(options)),
      commits_(has_any(graph_, Op::kCommit)),
      updates_(has_any(graph_, Op::kOptimizerUpdate)),
      first_unit_(options_.telemetry ? options_.telemetry->add_units(graph_.units()) : 0),
      rows_(std::move(rows)) {}

StepRunner::~StepRunner() {
  if (options_.telemetry) options_.telemetry->drop_units(first_unit_);
}

double StepRunner::now() const { return std::chrono::duration<double, std::micro>(model_->stepper().now() - began_).count(); }

Result<void> StepRunner::run(StepProgram& program) {
  if (lost_) return fail(*lost_);
  auto result = run_lanes(program);
  const auto telemetry = options_.telemetry.get();
  if (!result) {
    if (telemetry != nullptr) telemetry->unwind();
    lost_ = std::move(result).error().in(fmt::format("rank {}", rank())).in(fmt::format("step {}", steps_ + 1));
    // If a peer died, the membership page already names it as the cause. Otherwise mark_gone() comes before reset(), so that other ranks
    // see this error, not a step that was started over.
    if (lost_->reason() != "ActorDied") model_->peers().mark_gone(fmt::format("its step {} failed: {}", steps_ + 1, lost_->message()));
    model_->reset();
    return fail(*lost_);
  }
  ++steps_;
  if (telemetry != nullptr && updates_) telemetry->end_optimizer(optimizer_key(first_unit_));
  return {};
}

Result<void> StepRunner::run_lanes(StepProgram& program) {
  planned_ = estimate_.empty() ? std::vector<Span>() : graph_.schedule(estimate_);
  measured_.assign(graph_.nodes().size(), Span());
  progress_.emplace(graph_);
  failure_.reset();
  stopping_ = false;
  began_ = model_->stepper().now();
  rows_.begin_step();
  gradients_.clear();
  released_.clear();
  {
    const runtime::ActivityScope counted(options_.telemetry.get(), Activity::kGather, -1);
    SHOAL_OK(model_->enter(commits_));
  }
  model_->peers().interrupt_by([this] { return stopping_.load(); });
  {
    const runtime::SideThread communication([this] { run_lane(Lane::kCommunication, [this](const Node& n) { return communicate(n); }); });
    std::optional<runtime::SideThread> host_copy;
    if (has_any(graph_, Op::kFetch)) host_copy.emplace([this] { run_lane(Lane::kHostCopy, [this](const Node& n) { return copy(n); }); });
    run_lane(Lane::kCompute, [&](const Node& n) { return compute(n, program); });
    // The last nodes of a step may belong to other lanes, so the compute lane waits for these.
    std::unique_lock lock(mutex_);
    const auto finished = [this] { return progress_->finished(Lane::kCommunication) && progress_->finished(Lane::kHostCopy); };
    std::optional<runtime::ActivityScope> counted;
    while (!failure_ && !finished()) {
      begin_counted_wait(counted);
      wait_for_other_lane(lock, Lane::kCompute);
    }
    stopping_ = failure_.has_value();
  }
  model_->peers().interrupt_by({});
  report_released(program);
  if (failure_) return fail(*std::move(failure_));
  model_->end_step();
  estimate_.resize(measured_.size(), -1);
  for (std::size_t i = 0; i < measured_.size(); ++i) {
    const double took = measured_[i].end - measured_[i].start;
    estimate_[i] = estimate_[i] < 0 ? took : estimate_[i] + kForget * (took - estimate_[i]);
  }
  return {};
}

// Waits until another lane has made progress. Returns false when a signal ended the wait.
bool StepRunner::wait_for_other_lane(std::unique_lock<std::mutex>& lock, Lane lane) {
  if (lane != Lane::kCompute) return changed_.wait(lock), true;
  if (changed_.wait_for(lock, kPollInterval) == std::cv_status::no_timeout || !options_.interrupted) return true;
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
  std::optional<runtime::ActivityScope> counted;
  while (!failure_ && !progress_->finished(lane)) {
    const auto next = progress_->next(lane);
    if (!next) {
      if (lane == Lane::kCompute) begin_counted_wait(counted);
      wait_for_other_lane(lock, lane);
      continue;
    }
    counted.reset();
    const Node& node = graph_.nodes()[static_cast<std::size_t>(*next)];
    Span& span = measured_[static_cast<std::size_t>(*next)];
    progress_->begin(*next);
    span.start = now();
    changed_.notify_all();
    lock.unlock();
    auto result = perform(node);
    lock.lock();
    span.end = now();
    if (result) {
      progress_->end(*next);
    } else if (!failure_) {
      failure_ = std::move(result).error().in(fmt::format("node {} {}", node.id, graph_.label(node)));
      stopping_ = true;
    }
    changed_.notify_all();
  }
}

// ---- the compute lane ----------------------------------------------------------------------------------------------------------------

void StepRunner::report_released(StepProgram& program) {
  std::vector<Turn> released;
  {
    const std::lock_guard lock(mutex_);
    released.swap(released_);
  }
  for (const auto& [unit, micro] : released) program.released(unit, micro);
}

int StepRunner::key_of(const Node& node) const {
  if (activity_at(node) == Activity::kOptimizer) return optimizer_key(first_unit_);
  return node.unit < 0 ? -1 : first_unit_ + node.unit;
}

void StepRunner::begin_counted_wait(std::optional<runtime::ActivityScope>& wait) const {
  const auto awaited = options_.telemetry && !wait ? progress_->awaited(Lane::kCompute) : std::nullopt;
  if (!awaited) return;
  const Node& node = graph_.nodes()[static_cast<std::size_t>(*awaited)];
  wait.emplace(options_.telemetry.get(), activity_at(node), key_of(node));
}

Result<void> StepRunner::compute(const Node& node, StepProgram& program) {
  const runtime::ActivityScope counted(options_.telemetry.get(), activity_at(node), key_of(node));
  report_released(program);
  const auto unit = static_cast<std::size_t>(node.unit);
  switch (node.op) {
    case Op::kForward:
      if (node.unit >= 0) model_->peers().at(Doing::kForward, unit);
      return program.forward(node, input_of(graph_, node), !has(graph_, Op::kRecompute, node.unit, node.micro));
    case Op::kRecompute:
      model_->peers().at(Doing::kBackward, unit);
      return program.recompute(node, input_of(graph_, node));
    case Op::kBackward: {
      model_->peers().at(Doing::kBackward, unit);
      const bool reduced = has(graph_, Op::kReduceScatter, node.unit, node.micro);
      SHOAL_TRY(auto gradients, program.backward(node, input_of(graph_, node), reduced));
      if (!reduced) return {};
      if (gradients.size() != model_->units()[unit]->layout().placed().size())
        return fail(internal("a backward returned the wrong number of gradients"));
      const std::lock_guard lock(mutex_);
      gradients_[{node.unit, node.micro}] = std::move(gradients);
      return {};
    }
    case Op::kOptimizerUpdate:
      model_->peers().at(Doing::kOptimizer, unit);
      rows_.update(unit, options_.optimizer);
      return {};
    default:
      return fail(internal("a node was started on the wrong lane"));
  }
}

// ---- the other lanes -----------------------------------------------------------------------------------------------------------------

Result<void> StepRunner::communicate(const Node& node) {
  std::vector<std::int32_t> units = {node.unit};
  units.insert(units.end(), node.also.begin(), node.also.end());
  switch (node.op) {
    case Op::kUnshard:
      for (const auto unit : units) SHOAL_OK(model_->unshard(static_cast<std::size_t>(unit), node.backward));
      return {};
    case Op::kReshard:
      for (const auto unit : units) model_->reshard(static_cast<std::size_t>(unit), node.backward);
      return {};
    case Op::kReduceScatter:
      return reduce_scatter(node);
    case Op::kClipNorm:
      return clip(node.value);
    case Op::kCommit:
      return model_->finish_backward(true);
    default:
      return fail(internal("a node was started on the wrong lane"));
  }
}

Result<void> StepRunner::reduce_scatter(const Node& node) {
  std::vector<std::int32_t> units = {node.unit};
  units.insert(units.end(), node.also.begin(), node.also.end());
  for (const auto index : units) {
    StepProgram::Gradients whole;
    {
      const std::lock_guard lock(mutex_);
      whole = std::move(gradients_[{index, node.micro}]);
      gradients_.erase({index, node.micro});
    }
    const auto unit = static_cast<std::size_t>(index);
    SHOAL_OK(model_->publish(unit, rows_.to_reduce(unit, whole), {1.0 / model_->units()[unit]->grid().world_size}));
    const std::lock_guard lock(mutex_);
    released_.emplace_back(index, node.micro);
  }
  SHOAL_OK(model_->reductions().wait());
  for (const auto& reduced : model_->reductions().take()) rows_.reduced(reduced);
  return {};
}

// Scales all gradients by the formula of torch.nn.utils.clip_grad_norm_.
Result<void> StepRunner::clip(double max_norm) {
  SHOAL_TRY(const double squares, model_->reductions().sum_over_ranks(rows_.squares()));
  norm_ = std::sqrt(squares);
  if (const auto factor = static_cast<float>(max_norm / (norm_ + 1e-6)); factor < 1) rows_.scale(factor);
  return {};
}

Result<void> StepRunner::copy(const Node& node) {
  const auto unit = static_cast<std::size_t>(node.unit);
  return node.op == Op::kFetch ? rows_.fetch(unit) : rows_.offload(unit);
}

}  // namespace shoal::fsdp
