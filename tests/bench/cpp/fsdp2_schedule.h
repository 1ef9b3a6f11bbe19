// FSDP2's schedule on a virtual device: what its hooks put on which stream, and when its memory is freed. Written from torch 2.13,
// torch/distributed/fsdp/_fully_shard: _fsdp_state.py, _fsdp_param_group.py and _fsdp_collectives.py. Functions have torch's names.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/step/device_timeline.h"

namespace shoal::bench {

class Fsdp2Schedule {
 public:
  using Device = fsdp::VirtualDevice;

  // The program's requests for a unit.
  struct Rules {
    bool reshard_after_forward = true;
    std::vector<int> forward_prefetch, backward_prefetch;
  };

  Fsdp2Schedule(fsdp::DeviceProgram& program, Device& device, const fsdp::DeviceModel& model, std::vector<Rules> rules);

  void root_pre_forward();
  void pre_forward(int unit);
  void post_forward(int unit);
  void root_post_forward();
  void pre_backward(int unit);
  void post_backward(int unit);
  void root_post_backward_final_callback();

 private:
  using Stream = Device::Stream;
  using Memory = Device::Memory;
  using Mark = Device::Mark;
  struct ParamGroup {
    std::optional<Memory> all_gather_output = {};  // while there is an _all_gather_result
    Mark all_gather_event = Device::kBegin;
    std::optional<Memory> unsharded = {};
    std::vector<std::size_t> post_forward_indices = {};
    bool in_post_backward = false;
  };
  struct AllGatherState {
    Memory output;
    Mark event;
  };
  struct ReduceScatterState {
    Memory input;
    Mark event;
  };

  ParamGroup& group(int unit) { return groups_[static_cast<std::size_t>(unit)]; }
  bool is_empty(int unit) const { return model_.units[static_cast<std::size_t>(unit)].numel == 0; }
  void unshard(int unit);
  void wait_for_unshard(int unit, bool forward);
  void wait_all_gather_streams_on_event(Mark event);
  void reshard(int unit);
  void foreach_reduce(int unit);

  fsdp::DeviceProgram& program_;
  Device& device_;
  const fsdp::DeviceModel& model_;
  std::vector<Rules> rules_;
  std::vector<ParamGroup> groups_;
  std::vector<int> post_forward_order_;
  std::optional<AllGatherState> all_gather_state_;
  std::deque<ReduceScatterState> reduce_scatter_states_;
  std::optional<Mark> last_post_reduce_;
  std::vector<Memory> all_reduce_inputs_;
  std::vector<Mark> grad_offload_events_;
};

}  // namespace shoal::bench
