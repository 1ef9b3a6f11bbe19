// An operation on its way through NCCL: queued, begun on its channel, passed by the device, and ended with a result.
//
// The thread that submits it issues it, up to stage kOnStream. The thread that watches the group advances it from there, and does all of it
// for an operation that it issues itself. Other threads read the fields that the driver's mutex guards.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "runtime/transport/communicator.h"
#include "runtime/transport/entry.h"
#include "runtime/transport/nccl/nccl_channel.h"

namespace shoal::runtime {

class NcclOperation {
 public:
  NcclOperation(std::string what, Call call, TimePoint began) : what_(std::move(what)), call_(std::move(call)), began_(began) {}
  virtual ~NcclOperation() = default;

  const std::string& what() const { return what_; }  // for errors
  const Call& call() const { return call_; }
  TimePoint began() const { return began_; }

  bool by_caller = false;  // issued by the thread that submits it; set before other threads see the operation

  // ---- the thread that issues, then the one that watches ----
  enum class Stage { kQueued, kBegun, kOnStream, kPassed };
  Stage stage() const { return stage_.load(std::memory_order_acquire); }
  // Advances to the next stage, if the channel is ready for it. Returns true after progress. `end` is recorded behind the operation.
  Result<bool> advance(const NcclApi& api, const Device& device, NcclChannel& channel);
  // The time at which this operation was first seen to wait for a rank that is gone.
  std::optional<TimePoint> lonely_since;

  // ---- guarded by the driver's mutex ----
  Event ready;             // recorded on the caller's stream: the buffers may be used once it has passed; empty: at once
  Event end;               // recorded on the channel's stream in stage kOnStream
  bool on_stream = false;  // other threads' view of that stage
  std::optional<Error> error;

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  void set_ended() { ended_.store(true, std::memory_order_release); }

 private:
  // False if there is nothing to move.
  virtual bool moves() const = 0;
  // Copies the data that this rank keeps, in the order of the stream.
  virtual Result<void> copy_own(const Device& device, CudaStream stream) const = 0;
  virtual NcclStatus enqueue(const NcclApi& api, NcclComm comm, CudaStream stream) const = 0;

  const std::string what_;
  const Call call_;
  const TimePoint began_;
  std::atomic<Stage> stage_{Stage::kQueued};
  std::atomic<bool> ended_{false};
};

// One collective, or several all_gathers that NCCL gets as one group.
class NcclCollective final : public NcclOperation {
 public:
  // `entry` describes all of `specs`. `scratch`: memory of the device for a barrier.
  NcclCollective(Entry entry, std::vector<CollectiveSpec> specs, int rank, std::span<std::byte> scratch, Call call, TimePoint began);

  // The fingerprint that ranks compare: it is equal if their collectives with this number match.
  std::int64_t fingerprint() const;
  // An all_to_all's counts, which are compared as well; else nullptr.
  const CollectiveSpec* pairwise() const { return specs_[0].kind == Collective::kAllToAll ? &specs_[0] : nullptr; }
  bool agreed() const { return agreed_; }
  void set_agreed() { agreed_ = true; }

 private:
  bool moves() const override;
  Result<void> copy_own(const Device& device, CudaStream stream) const override;
  NcclStatus enqueue(const NcclApi& api, NcclComm comm, CudaStream stream) const override;
  NcclStatus enqueue(const CollectiveSpec& spec, const NcclApi& api, NcclComm comm, CudaStream stream) const;
  NcclStatus exchange(const CollectiveSpec& spec, const NcclApi& api, NcclComm comm, CudaStream stream) const;

  const Entry entry_;
  const std::vector<CollectiveSpec> specs_;
  const std::size_t rank_;
  const std::span<std::byte> scratch_;
  bool agreed_ = false;
};

// A send or receive, on a channel of two ranks, whose rank 0 sends and whose rank 1 receives.
class NcclMessage final : public NcclOperation {
 public:
  enum class Way { kSend, kReceive };
  NcclMessage(Way way, int rank, int other, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call, TimePoint began);

  Way way() const { return way_; }
  int other() const { return other_; }
  std::size_t bytes() const { return data_.size(); }
  DType dtype() const { return dtype_; }
  std::uint32_t tag() const { return tag_; }

 private:
  bool moves() const override { return !data_.empty(); }
  Result<void> copy_own(const Device&, CudaStream) const override { return {}; }
  NcclStatus enqueue(const NcclApi& api, NcclComm comm, CudaStream stream) const override;

  const Way way_;
  const int other_;
  const std::span<std::byte> data_;
  const DType dtype_;
  const std::uint32_t tag_;
};

}  // namespace shoal::runtime
