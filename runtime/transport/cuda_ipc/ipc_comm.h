// One rank of a communicator whose data travel by copies from the device memory of one process to another's (CUDA IPC). Reductions go in
// rank order, with the bits of the transports of hosts. All functions belong to one thread at a time.
//
// Each rank copies its input in chunks into memory that all other ranks have open. Then those ranks read it. advance() puts the next of
// these steps on the stream once the other ranks have put their steps on their streams.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "runtime/device/kernels/device_kernels.h"
#include "runtime/transport/cuda_ipc/ipc_operation.h"
#include "runtime/transport/cuda_ipc/ipc_segment.h"

namespace shoal::runtime {

class IpcComm {
 public:
  struct Options {
    std::size_t chunk_bytes = 32 << 20;   // bytes of a rank's input to stage at once; a multiple of 16 for each rank
    std::size_t message_bytes = 4 << 20;  // bytes of a message to stage at once
    const void* kernels = nullptr;        // the image of DeviceKernels; null: reductions fail
    // Returns true once a rank's process has ended. Empty: the kernel's list of processes decides.
    std::function<bool(int rank, std::int32_t pid)> has_ended = {};
  };
  static Result<std::unique_ptr<IpcComm>> join(std::shared_ptr<const Device> device, const std::string& name, int num_ranks, int rank,
                                               Options options);

  const Device& device() const { return *device_; }
  int num_ranks() const { return static_cast<int>(peers_.size()); }
  int rank() const { return rank_; }
  // Begins the operations of one group of calls. Call it when advance() has returned true.
  void begin(const std::vector<IpcOperation>& operations);
  // Puts the possible steps on the stream. Returns true if nothing is left of the begun operations, or of joining. Unavailable/ActorDied
  // if a rank has died, and another one has released the streams that waited for it.
  Result<bool> advance();
  // Drops all steps that are not on the stream yet. The memory is kept until try_close(). Steps on the stream no longer wait for ranks
  // whose processes have ended, and have undefined results then.
  void end();
  // Releases this rank's stream from ranks that have ended meanwhile. With `overdue` it releases the stream from all ranks, because after a
  // failure a living rank may never go on. Closes this rank and returns true once no work on any device can use its memory, which may then
  // be freed. Call it after end().
  bool try_close(bool overdue = false);

 private:
  using Rank = IpcSegment::Rank;
  using Region = IpcSegment::Region;
  struct Peer {
    std::array<Event, IpcSegment::kEvents> events;
    std::array<PeerMemory, IpcSegment::kRegions> memory;
  };
  struct Run {
    IpcOperation operation;
    std::size_t moved_bytes = 0;  // moved bytes of each part, where there are parts
    int phase = 0;
  };

  IpcComm(std::shared_ptr<const Device> device, std::string name, std::shared_ptr<IpcSegment> segment, int num_ranks, int rank,
          Options options)
      : device_(std::move(device)),
        name_(std::move(name)),
        segment_(std::move(segment)),
        rank_(rank),
        options_(options),
        peers_(static_cast<std::size_t>(num_ranks)) {}
  Result<void> introduce();
  Result<bool> meet();
  Rank& own() { return segment_->ranks[rank_]; }
  bool has_ended(int rank) const;
  enum class End { kNone, kRecorded, kUnknown };  // the last one: the driver has refused to record the event
  enum class Released { kEnded, kAll };
  void release(Released which);

  // ---- collectives ----
  Result<bool> advance_collective();
  // Puts one step on the stream. Sets the run's next phase, or the bytes that are done.
  Result<void> step(Run& run);
  Result<void> step_all_gather(Run& run);
  Result<void> step_reduce_scatter(Run& run);
  Result<void> step_all_reduce(Run& run);
  Result<void> step_to_or_from_root(Run& run);
  bool over(const Run& run) const;
  Result<void> reduce(const IpcOperation& operation, std::size_t offset, std::byte* out, std::size_t bytes);

  // ---- messages ----
  Result<bool> advance_message(Run& run);

  // ---- memory and order ----
  Result<std::byte*> memory(Region region);
  Result<const std::byte*> memory_of(int rank, Region region);
  std::size_t region_bytes(Region region) const;
  Result<void> wait_for(int rank);  // the stream waits for what the rank has recorded
  Result<void> record();
  Result<void> copy(std::byte* to, const std::byte* from, std::size_t bytes);

  const std::shared_ptr<const Device> device_;
  const std::string name_;
  const std::shared_ptr<IpcSegment> segment_;
  RegisteredMemory registered_;  // the segment, if the device orders by words
  const int rank_;
  const Options options_;
  std::vector<Peer> peers_;  // by rank; this rank's own entry has its own events, and no memory
  std::array<DeviceMemory, IpcSegment::kRegions> memory_;
  std::optional<DeviceKernels> kernels_;
  CudaStream stream_ = nullptr;
  bool met_ = false, by_words_ = false;  // by_words_: all ranks' streams write words
  std::deque<Run> collectives_;
  std::map<std::pair<int, IpcOperation::Kind>, std::deque<Run>> messages_;
  std::uint64_t steps_ = 0;
  Event end_;  // behind all that this rank has put on the stream
  End end_state_ = End::kNone;
};

}  // namespace shoal::runtime
