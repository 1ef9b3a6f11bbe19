#include "tests/bench/cpp/fsdp2_schedule.h"

#include <utility>

namespace shoal::bench {

using MemoryKind = fsdp::VirtualDevice::Kind;

Fsdp2Schedule::Fsdp2Schedule(fsdp::DeviceProgram& program, Device& device, const fsdp::DeviceModel& model, std::vector<Rules> rules)
    : program_(program), device_(device), model_(model), rules_(std::move(rules)), groups_(model.units.size()) {}

// ---- gathers -------------------------------------------------------------------------------------------------------------------------

void Fsdp2Schedule::unshard(int unit) {
  ParamGroup& g = group(unit);
  if (is_empty(unit) || g.all_gather_output || g.unsharded) return;
  const double piece = model_.shard(unit);
  // foreach_all_gather: shards are cast to a flat tensor, or copied and cast one by one, and then copied into the output.
  if (model_.offloads) {
    device_.copy_to_device(Stream::kPack, program_.label("to device", unit), piece * model_.stored);
  }
  Memory cast = device_.allocate(Stream::kPack, MemoryKind::kPacked, piece * model_.compute);
  device_.move(Stream::kPack, program_.label("cast", unit), piece * (model_.stored + model_.compute));
  g.all_gather_output = device_.allocate(Stream::kPack, MemoryKind::kPacked, piece * model_.shards.ranks * model_.compute);
  device_.move(Stream::kPack, program_.label("copy-in", unit), 2 * piece * model_.compute);
  device_.free(cast);
  device_.wait(Stream::kGather, device_.mark(Stream::kPack));
  program_.all_gather(unit);
  g.all_gather_event = device_.mark(Stream::kGather);
}

void Fsdp2Schedule::wait_for_unshard(int unit, bool forward) {
  ParamGroup& g = group(unit);
  if (!g.all_gather_output) return;
  if (forward && all_gather_state_) {
    wait_all_gather_streams_on_event(all_gather_state_->event);
    device_.free(all_gather_state_->output);
    all_gather_state_.reset();
  }
  const double bytes = model_.shard(unit) * model_.shards.ranks * model_.compute;
  device_.wait(Stream::kProgram, g.all_gather_event);
  g.unsharded = device_.allocate(Stream::kProgram, MemoryKind::kWhole, bytes);
  device_.move(Stream::kProgram, program_.label("copy-out", unit), 2 * bytes);
  const Mark event = device_.mark(Stream::kProgram);
  if (forward) {
    all_gather_state_ = AllGatherState{*g.all_gather_output, event};
  } else {
    wait_all_gather_streams_on_event(event);
    device_.free(*g.all_gather_output);
  }
  g.all_gather_output.reset();
}

void Fsdp2Schedule::wait_all_gather_streams_on_event(Mark event) {
  device_.wait(Stream::kPack, event);
  device_.wait(Stream::kGather, event);
}

void Fsdp2Schedule::reshard(int unit) {
  ParamGroup& g = group(unit);
  if (g.unsharded) device_.free(*g.unsharded);
  g.unsharded.reset();
}

// ---- forward -------------------------------------------------------------------------------------------------------------------------

void Fsdp2Schedule::root_pre_forward() {
  const Mark current = device_.mark(Stream::kProgram);
  wait_all_gather_streams_on_event(current);
}

void Fsdp2Schedule::pre_forward(int unit) {
  device_.spend(device_.costs().hook);
  unshard(unit);
  wait_for_unshard(unit, /*forward=*/true);
  for (const int target : rules_[static_cast<std::size_t>(unit)].forward_prefetch) unshard(target);
}

void Fsdp2Schedule::post_forward(int unit) {
  device_.spend(device_.costs().hook);
  if (is_empty(unit)) return;
  if (rules_[static_cast<std::size_t>(unit)].reshard_after_forward) reshard(unit);
  group(unit).post_forward_indices.push_back(post_forward_order_.size());
  post_forward_order_.push_back(unit);
}

void Fsdp2Schedule::root_post_forward() {
  if (!all_gather_state_) return;
  wait_all_gather_streams_on_event(all_gather_state_->event);
  device_.free(all_gather_state_->output);
  all_gather_state_.reset();
}

// ---- backward ------------------------------------------------------------------------------------------------------------------------

void Fsdp2Schedule::pre_backward(int unit) {
  device_.spend(device_.costs().hook);
  ParamGroup& g = group(unit);
  g.in_post_backward = false;
  unshard(unit);
  wait_for_unshard(unit, /*forward=*/false);
  const auto& listed = rules_[static_cast<std::size_t>(unit)].backward_prefetch;
  for (const int target : listed) unshard(target);
  if (!listed.empty() || g.post_forward_indices.empty()) return;
  const std::size_t index = g.post_forward_indices.back();
  g.post_forward_indices.pop_back();
  if (index > 0) unshard(post_forward_order_[index - 1]);
}

void Fsdp2Schedule::post_backward(int unit) {
  device_.spend(device_.costs().hook);
  group(unit).in_post_backward = true;
  if (is_empty(unit)) return;
  reshard(unit);
  while (reduce_scatter_states_.size() >= static_cast<std::size_t>(model_.inputs)) {
    device_.wait(Stream::kProgram, reduce_scatter_states_.front().event);
    device_.free(reduce_scatter_states_.front().input);
    reduce_scatter_states_.pop_front();
  }
  foreach_reduce(unit);
}

void Fsdp2Schedule::foreach_reduce(int unit) {
  const double piece = model_.shard(unit), numel = piece * model_.shards.ranks;
  const Memory input = device_.allocate(Stream::kProgram, MemoryKind::kPacked, numel * model_.reduce);
  device_.move(Stream::kProgram, program_.label("copy-in gradients", unit), numel * (model_.compute + model_.reduce));
  program_.free_gradients(unit);
  device_.wait(Stream::kReduce, device_.mark(Stream::kProgram));
  Memory out = device_.allocate(Stream::kReduce, MemoryKind::kGradients, piece * model_.reduce);
  program_.reduce_scatter(unit);  // ReduceOp.AVG: it divides, too
  const Mark event = device_.mark(Stream::kReduce);
  Stream stream = Stream::kReduce;
  const bool among_replicas = model_.replicas.ranks > 1;
  if (among_replicas) {
    stream = Stream::kReplicas;
    device_.wait(stream, device_.mark(Stream::kReduce));
    program_.all_reduce(unit);
  }
  const bool casts = model_.stored != model_.reduce;
  Memory grad = out;
  if (casts) {
    grad = device_.allocate(stream, MemoryKind::kGradients, piece * model_.stored);
    device_.move(stream, program_.label("cast", unit), piece * (model_.reduce + model_.stored));
    if (among_replicas) {
      all_reduce_inputs_.push_back(out);  // _all_reduce_state: until the end of the pass
    } else {
      device_.free(out);
    }
  }
  if (model_.offloads) {
    device_.copy_to_host(stream, program_.label("to host", unit), piece * model_.stored);
    device_.free(grad);
    grad_offload_events_.push_back(device_.mark(stream));
  } else {
    program_.keep_reduced(grad);
  }
  last_post_reduce_ = device_.mark(stream);
  reduce_scatter_states_.push_back({input, event});
}

void Fsdp2Schedule::root_post_backward_final_callback() {
  for (int unit = 0; unit < static_cast<int>(groups_.size()); ++unit) {
    if (is_empty(unit)) continue;  // a state without a param group
    ParamGroup& g = group(unit);
    if (!g.in_post_backward) post_backward(unit);
    g.in_post_backward = false;
    if (last_post_reduce_) device_.wait(Stream::kProgram, *last_post_reduce_);
    last_post_reduce_.reset();
    g.post_forward_indices.clear();
  }
  // finalize_backward of each group waits for its own copy to the host.
  for (const Mark mark : grad_offload_events_) device_.synchronize(mark);
  grad_offload_events_.clear();
  for (auto& memory : all_reduce_inputs_) device_.free(memory);
  all_reduce_inputs_.clear();
  post_forward_order_.clear();
  for (auto& state : reduce_scatter_states_) {
    device_.wait(Stream::kProgram, state.event);
    device_.free(state.input);
  }
  reduce_scatter_states_.clear();
}

}  // namespace shoal::bench
