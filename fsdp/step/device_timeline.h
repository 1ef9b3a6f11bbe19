// The executor for a virtual device: what each action puts on which stream, as python/shoal/fsdp/_devices does, and the memory that it
// takes. It shows how long a step's communication is exposed on a cluster that is not there. SimulatedRanks (simulated/ranks.h) checks the
// protocol; this class assumes it, and knows one rank, because all ranks of a step on devices do the same.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/device/virtual_device.h"
#include "fsdp/step/executor.h"

namespace shoal::fsdp {

// A unit of a model, on one rank.
struct DeviceUnit {
  std::string name;
  double numel = 0;                  // elements of its whole parameters; 0: it has no parameters
  double forward = 0, backward = 0;  // seconds
  double activations = 0;            // bytes that its forward keeps for its backward
  int kernels = 1;                   // kernels that the host launches in forward; in backward twice as many
};

// The costs of a rank's steps under any order of their communication.
struct DeviceModel {
  std::vector<DeviceUnit> units;
  Communicator shards, replicas;                // replicas of 1 rank: no replicas
  std::optional<Communicator> reductions = {};  // for reduce_scatters; empty: `shards`
  double stored = 4, compute = 2, reduce = 4;   // bytes of an element: a shard's, a whole parameter's, a reduced gradient's
  double states = 12;                           // bytes of an element's shard and optimizer states
  double optimizer_reads = 28;                  // bytes of an element that an optimizer step reads and writes
  bool offloads = false;                        // shards, gradients and states are in the host's memory
  double host_memory = 50e9;                    // bytes per second that the optimizer reads and writes in it
  int inputs = 1;                               // reductions that may hold their inputs at a time
  // DeviceTimeline only. True: Shoal's own groups, which gather straight into whole parameters, and divide sums in a separate kernel.
  bool own_groups = false;
  // True: slices so large that a process group, too, gathers them straight into whole parameters, if the gather begins ahead.
  bool large_slices = false;

  double shard(int unit) const { return units[static_cast<std::size_t>(unit)].numel / shards.ranks; }
  double compute_seconds(const DeviceCosts& costs) const;  // a step without communication, packing or hooks
  double optimizer_seconds(const DeviceCosts& costs) const;
};

// The numbers of communicators on a virtual device.
enum class DeviceGroupNumber : std::uint8_t { kShards, kReplicas, kReductions };

// The computation of a model's program: kernels on the program's stream, activations, gradients.
class DeviceProgram {
 public:
  using Stream = VirtualDevice::Stream;
  DeviceProgram(VirtualDevice& device, const DeviceModel& model);

  void forward(int unit);
  // Leaves the unit's whole gradients in memory, until free_gradients().
  void backward(int unit);
  void free_gradients(int unit) { device_.free(gradients_[static_cast<std::size_t>(unit)]); }
  // Keeps the memory of reduced gradients until optimizer() has used them.
  void keep_reduced(VirtualDevice::Memory memory) { reduced_.push_back(memory); }
  void optimizer();

  VirtualDevice::Mark reduce_scatter(int unit);
  VirtualDevice::Mark all_gather(int unit);
  VirtualDevice::Mark all_reduce(int unit);
  std::string label(const std::string& what, int unit) const;

 private:
  VirtualDevice& device_;
  const DeviceModel& model_;
  std::vector<VirtualDevice::Memory> activations_, gradients_;  // by unit
  std::vector<VirtualDevice::Memory> reduced_;
};

class DeviceTimeline final : public Executor {
 public:
  using Stream = VirtualDevice::Stream;
  using Memory = VirtualDevice::Memory;
  using Mark = VirtualDevice::Mark;

  DeviceTimeline(StepMachine& machine, DeviceProgram& program, VirtualDevice& device, const DeviceModel& model)
      : machine_(machine), program_(program), device_(device), model_(model), units_(model.units.size()) {}
  // `schedule`: what the machine follows from kEnter on; null: nothing.
  void follow(std::shared_ptr<const Schedule> schedule) { schedule_ = std::move(schedule); }

  Result<void> run(const Action& action) override;

 private:
  struct Unit {
    bool gathers = false;                 // a gather is under way
    Mark gather = VirtualDevice::kBegin;  // the gather's end
    bool in_place = false;                // the gather needs no buffer
    std::optional<Memory> gathered = {};  // the gather's buffer
    std::optional<Memory> whole = {};
  };
  struct Reduction {
    int unit = 0;
    std::optional<Memory> packed = {};
    Memory out = {};
    Mark mark = VirtualDevice::kBegin;
    bool among_replicas = false;
  };
  // Memory that is freed after a mark: the buffer of a gather that was unpacked, or a gradient that was copied.
  struct Read {
    Mark mark = VirtualDevice::kBegin;
    Memory memory = {};
  };

  Unit& unit(int number) { return units_[static_cast<std::size_t>(number)]; }
  bool is_empty(int number) const { return model_.units[static_cast<std::size_t>(number)].numel == 0; }
  void begin_gather(int unit, bool ahead);
  void begin_in_place(int unit);
  void allocate_whole(int unit);
  void drop_gather(int unit);
  void unshard(int unit);
  void reshard(int unit);
  void unpacked(Memory buffer);
  void free(Read read);
  void begin_reduce(int unit);
  void free_packed(Reduction& reduction);
  void reduce_replicas(int unit);
  void finish_reduce(int unit);
  void free_copied();
  void finish_transfers();

  StepMachine& machine_;
  DeviceProgram& program_;
  VirtualDevice& device_;
  const DeviceModel& model_;
  std::shared_ptr<const Schedule> schedule_;
  std::vector<Unit> units_;
  Mark rows_ = VirtualDevice::kBegin;
  std::optional<Read> read_;  // the buffer of a forward's last gather
  std::optional<Read> copied_;
  std::deque<Reduction> reductions_;
  std::vector<Mark> accumulated_, on_host_;
};

}  // namespace shoal::fsdp
