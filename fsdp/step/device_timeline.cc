#include "fsdp/step/device_timeline.h"

#include <algorithm>
#include <utility>

#include "runtime/core/check.h"

namespace shoal::fsdp {

using ActionKind = Action::Kind;
using MemoryKind = VirtualDevice::Kind;
using Mark = VirtualDevice::Mark;

// ---- the program's computation -------------------------------------------------------------------------------------------------------

double DeviceModel::optimizer_seconds(const DeviceCosts& costs) const {
  double numel = 0;
  for (const DeviceUnit& u : units) numel += u.numel;
  return numel / shards.ranks * optimizer_reads / (offloads ? host_memory : costs.memory);
}

double DeviceModel::compute_seconds(const DeviceCosts& costs) const {
  double sum = optimizer_seconds(costs);
  for (const DeviceUnit& u : units) sum += u.forward + u.backward;
  return sum;
}

DeviceProgram::DeviceProgram(VirtualDevice& device, const DeviceModel& model)
    : device_(device), model_(model), activations_(model.units.size()), gradients_(model.units.size()) {
  if (model.offloads) return;
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u) {
    (void)device.allocate(Stream::kProgram, MemoryKind::kShards, model.shard(u) * model.states);
  }
}

std::string DeviceProgram::label(const std::string& what, int unit) const {
  return what + " " + model_.units[static_cast<std::size_t>(unit)].name;
}

void DeviceProgram::forward(int unit) {
  const DeviceUnit& u = model_.units[static_cast<std::size_t>(unit)];
  activations_[static_cast<std::size_t>(unit)] = device_.allocate(Stream::kProgram, MemoryKind::kActivations, u.activations);
  device_.run({.stream = Stream::kProgram, .label = label("forward", unit), .seconds = u.forward});
  device_.spend(device_.costs().launch * (u.kernels - 1));
}

void DeviceProgram::backward(int unit) {
  const DeviceUnit& u = model_.units[static_cast<std::size_t>(unit)];
  gradients_[static_cast<std::size_t>(unit)] = device_.allocate(Stream::kProgram, MemoryKind::kGradients, u.numel * model_.compute);
  device_.run({.stream = Stream::kProgram, .label = label("backward", unit), .seconds = u.backward});
  device_.spend(device_.costs().launch * 2 * u.kernels);
  device_.free(activations_[static_cast<std::size_t>(unit)]);
}

void DeviceProgram::optimizer() {
  const double seconds = model_.optimizer_seconds(device_.costs());
  if (model_.offloads) {
    device_.spend(seconds);  // on the host
  } else {
    device_.run({.stream = Stream::kProgram, .label = "optimizer", .seconds = seconds});
  }
  for (auto& memory : reduced_) device_.free(memory);
  reduced_.clear();
}

Mark DeviceProgram::all_gather(int unit) {
  const double bytes = model_.units[static_cast<std::size_t>(unit)].numel * model_.compute;
  return device_.collective(Stream::kGather, label("all_gather", unit), static_cast<int>(DeviceGroupNumber::kShards), model_.shards,
                            model_.shards.gather_seconds(bytes));
}

Mark DeviceProgram::reduce_scatter(int unit) {
  const double bytes = model_.units[static_cast<std::size_t>(unit)].numel * model_.reduce;
  const auto number = model_.reductions ? DeviceGroupNumber::kReductions : DeviceGroupNumber::kShards;
  const Communicator& group = model_.reductions ? *model_.reductions : model_.shards;
  return device_.collective(Stream::kReduce, label("reduce_scatter", unit), static_cast<int>(number), group, group.gather_seconds(bytes));
}

Mark DeviceProgram::all_reduce(int unit) {
  return device_.collective(Stream::kReplicas, label("all_reduce", unit), static_cast<int>(DeviceGroupNumber::kReplicas), model_.replicas,
                            model_.replicas.all_reduce_seconds(model_.shard(unit) * model_.reduce));
}

// ---- actions -------------------------------------------------------------------------------------------------------------------------

Result<void> DeviceTimeline::run(const Action& a) {
  device_.spend(device_.costs().action);
  switch (a.kind) {
    case ActionKind::kEnter:
      device_.spend(device_.costs().rendezvous);
      if (a.unit == kAllUnits) machine_.follow(a.model, schedule_);
      break;
    case ActionKind::kFinishPass:
      device_.spend(device_.costs().rendezvous);
      break;
    case ActionKind::kOrderRows:
      rows_ = device_.mark(Stream::kProgram);
      break;
    case ActionKind::kBeginGather:
      begin_gather(a.unit, a.ahead);
      break;
    case ActionKind::kDropGather:
      drop_gather(a.unit);
      break;
    case ActionKind::kEndForward:
      if (read_) free(*read_);
      read_.reset();
      break;
    case ActionKind::kShow:
      if (a.view == View::kUnsharded) unshard(a.unit);
      if (a.view == View::kSharded) reshard(a.unit);
      break;
    case ActionKind::kBeginReduce:
      begin_reduce(a.unit);
      break;
    case ActionKind::kReduceReplicas:
      reduce_replicas(a.unit);
      break;
    case ActionKind::kFinishReduce:
      finish_reduce(a.unit);
      break;
    case ActionKind::kFinishTransfers:
      finish_transfers();
      break;
    default:
      break;
  }
  return {};
}

// ---- gathers: _devices/gather.py -------------------------------------------------------------------------------------------------------

void DeviceTimeline::begin_gather(int number, bool ahead) {
  Unit& u = unit(number);
  if (is_empty(number) || u.gathers || u.whole) return;
  u.gathers = true;
  u.in_place = model_.own_groups || (ahead && model_.large_slices);
  if (u.in_place) return begin_in_place(number);
  const double piece = model_.shard(number);
  device_.wait(Stream::kPack, rows_);
  u.gathered = device_.allocate(Stream::kPack, MemoryKind::kPacked, piece * model_.shards.ranks * model_.compute);
  // No memory for the copies is counted: parameters are copied and cast one by one, and each reuses the memory of the one before.
  if (model_.offloads) device_.copy_to_device(Stream::kPack, program_.label("to device", number), piece * model_.stored);
  device_.move(Stream::kPack, program_.label("pack", number), piece * (model_.stored + model_.compute));
  device_.wait(Stream::kGather, device_.mark(Stream::kPack));
  program_.all_gather(number);
  u.gather = device_.mark(Stream::kGather);
}

void DeviceTimeline::begin_in_place(int number) {
  Unit& u = unit(number);
  const double piece = model_.shard(number);
  allocate_whole(number);
  device_.wait(Stream::kPack, device_.mark(Stream::kProgram));  // which may still read what the memory held before
  device_.wait(Stream::kPack, rows_);
  if (model_.offloads) device_.copy_to_device(Stream::kPack, program_.label("to device", number), piece * model_.stored);
  device_.move(Stream::kPack, program_.label("cast", number), piece * (model_.stored + model_.compute));
  device_.wait(Stream::kGather, device_.mark(Stream::kPack));
  program_.all_gather(number);
  u.gather = device_.mark(Stream::kGather);
}

void DeviceTimeline::allocate_whole(int number) {
  const double bytes = model_.shard(number) * model_.shards.ranks * model_.compute;
  unit(number).whole = device_.allocate(Stream::kProgram, MemoryKind::kWhole, bytes);
}

void DeviceTimeline::unshard(int number) {
  Unit& u = unit(number);
  begin_gather(number, /*ahead=*/false);
  if (!u.gathers) return;
  u.gathers = false;
  if (!u.in_place) allocate_whole(number);
  device_.wait(Stream::kProgram, u.gather);
  if (u.in_place) return;
  device_.move(Stream::kProgram, program_.label("unpack", number), 2 * u.whole->bytes);
  unpacked(*u.gathered);
  u.gathered.reset();
}

// As Transfers.unpacked in _devices/streams.py: in forward, a buffer is kept until the next one is unpacked.
void DeviceTimeline::unpacked(Memory buffer) {
  const auto before = std::exchange(read_, std::nullopt);
  const Read read{device_.mark(Stream::kProgram), buffer};
  if (machine_.in_pass()) {
    free(read);
  } else {
    read_ = read;
  }
  if (before) free(*before);
}

void DeviceTimeline::free(Read read) {
  device_.wait(Stream::kPack, read.mark);
  device_.wait(Stream::kGather, read.mark);
  device_.free(read.memory);
}

void DeviceTimeline::reshard(int number) {
  Unit& u = unit(number);
  if (!u.whole) return;
  device_.free(*u.whole);
  u.whole.reset();
}

void DeviceTimeline::drop_gather(int number) {
  Unit& u = unit(number);
  if (!u.gathers) return;
  u.gathers = false;
  device_.wait(Stream::kProgram, u.gather);
  if (u.in_place) return reshard(number);
  unpacked(*u.gathered);
  u.gathered.reset();
}

// ---- reductions: _devices/reduction.py -------------------------------------------------------------------------------------------------

void DeviceTimeline::begin_reduce(int number) {
  if (is_empty(number)) return;
  const double piece = model_.shard(number), numel = piece * model_.shards.ranks;
  Reduction r{.unit = number};
  r.packed = device_.allocate(Stream::kProgram, MemoryKind::kPacked, numel * model_.reduce);
  device_.move(Stream::kProgram, program_.label("pack gradients", number), numel * (model_.compute + model_.reduce));
  program_.free_gradients(number);
  device_.wait(Stream::kReduce, device_.mark(Stream::kProgram));
  r.out = device_.allocate(Stream::kReduce, MemoryKind::kGradients, piece * model_.reduce);
  program_.reduce_scatter(number);
  r.mark = device_.mark(Stream::kReduce);
  reductions_.push_back(r);
}

void DeviceTimeline::free_packed(Reduction& r) {
  if (!r.packed) return;
  device_.wait(Stream::kProgram, r.mark);
  device_.free(*r.packed);
  r.packed.reset();
}

void DeviceTimeline::reduce_replicas(int number) {
  const auto found = std::find_if(reductions_.begin(), reductions_.end(), [](const Reduction& r) { return !r.among_replicas; });
  SHOAL_CHECK(found != reductions_.end() && found->unit == number, "another unit's reduction is the oldest one among shards");
  found->among_replicas = true;
  free_packed(*found);
  device_.wait(Stream::kReplicas, found->mark);
  program_.all_reduce(number);
  found->mark = device_.mark(Stream::kReplicas);
}

void DeviceTimeline::finish_reduce(int number) {
  if (is_empty(number)) return;
  SHOAL_CHECK(!reductions_.empty() && reductions_.front().unit == number, "another unit's reduction is the oldest one");
  Reduction r = reductions_.front();
  reductions_.pop_front();
  free_packed(r);
  free_copied();
  const Stream stream = r.among_replicas ? Stream::kReplicas : Stream::kReduce;
  const double piece = model_.shard(number);
  device_.wait(stream, r.mark);
  if (model_.own_groups) device_.move(stream, program_.label("scale", number), 2 * piece * model_.reduce);
  if (model_.stored != model_.reduce) {
    const Memory cast = device_.allocate(stream, MemoryKind::kGradients, piece * model_.stored);
    device_.move(stream, program_.label("cast", number), piece * (model_.reduce + model_.stored));
    device_.free(r.out);
    r.out = cast;
  }
  if (model_.offloads) {
    device_.wait(Stream::kCopies, device_.mark(stream));
    device_.copy_to_host(Stream::kCopies, program_.label("to host", number), piece * model_.stored);
    on_host_.push_back(device_.mark(Stream::kCopies));
    copied_ = {on_host_.back(), r.out};
  } else {
    program_.keep_reduced(r.out);
  }
  accumulated_.push_back(device_.mark(stream));
  device_.wait(Stream::kReduce, device_.mark(stream));  // the memory of the sums returns to that pool
}

void DeviceTimeline::free_copied() {
  if (!copied_) return;
  device_.wait(Stream::kReplicas, copied_->mark);
  device_.wait(Stream::kReduce, copied_->mark);
  device_.free(copied_->memory);
  copied_.reset();
}

void DeviceTimeline::finish_transfers() {
  for (const Mark mark : accumulated_) device_.wait(Stream::kProgram, mark);
  for (const Mark mark : on_host_) device_.synchronize(mark);
  free_copied();
  accumulated_.clear();
  on_host_.clear();
}

}  // namespace shoal::fsdp
